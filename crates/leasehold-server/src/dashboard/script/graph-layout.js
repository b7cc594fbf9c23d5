// Where the claimants of the waits-for graph stand: who waits above whom they wait for, those of a cycle around a circle.

const NODE = { width: 190, height: 58 };
const GAP = { x: 34, y: 84 };
const PICTURE_WIDTH = 1150;

/** Tarjan's algorithm: groups of claimants that wait for each other. Every claimant is in exactly one. Without recursion, since a chain can be long. */
function groupsOf(ids, after) {
  const index = new Map();
  const low = new Map();
  const stack = [];
  const onStack = new Set();
  const groups = [];
  for (const root of ids) {
    if (index.has(root)) continue;
    const work = [{ id: root, next: 0 }];
    while (work.length > 0) {
      const frame = work[work.length - 1];
      const { id } = frame;
      if (frame.next === 0) {
        index.set(id, index.size);
        low.set(id, index.get(id));
        stack.push(id);
        onStack.add(id);
      }
      const targets = after.get(id) ?? [];
      if (frame.next < targets.length) {
        const to = targets[frame.next];
        frame.next += 1;
        if (!index.has(to)) work.push({ id: to, next: 0 });
        else if (onStack.has(to)) low.set(id, Math.min(low.get(id), index.get(to)));
        continue;
      }
      work.pop();
      if (work.length > 0) {
        const parent = work[work.length - 1].id;
        low.set(parent, Math.min(low.get(parent), low.get(id)));
      }
      if (low.get(id) === index.get(id)) {
        const group = [];
        let member;
        do {
          member = stack.pop();
          onStack.delete(member);
          group.push(member);
        } while (member !== id);
        groups.push(group.reverse());
      }
    }
  }
  return groups;
}

/** Turns a circle so that whom others wait for most stands at its top, where their arrows come from. */
function mostWaitedFirst(group, edges) {
  const members = new Set(group);
  const waiters = (id) => edges.filter((edge) => edge.to === id && !members.has(edge.from)).length;
  const at = group.length > 2 ? group.map(waiters).reduce((best, count, index, all) => (count > all[best] ? index : best), 0) : 0;
  return [...group.slice(at), ...group.slice(0, at)];
}

/** A group as a block: one claimant, or a circle of them. Positions are of the middles, within the block. */
function blockOf(group) {
  if (group.length === 1) return { members: group, width: NODE.width, height: NODE.height, places: [[NODE.width / 2, NODE.height / 2]] };
  if (group.length === 2) {
    const width = 2 * NODE.width + 150;
    return { members: group, width, height: NODE.height + 50, places: [[NODE.width / 2, NODE.height / 2 + 25], [width - NODE.width / 2, NODE.height / 2 + 25]] };
  }
  const radius = Math.max(150, ((NODE.width + 50) * group.length) / (2 * Math.PI));
  const width = 2 * radius + NODE.width;
  const height = 2 * radius * 0.72 + NODE.height;
  const places = group.map((_, at) => {
    const angle = (2 * Math.PI * at) / group.length - Math.PI / 2;
    return [width / 2 + radius * Math.cos(angle), height / 2 + radius * 0.72 * Math.sin(angle)];
  });
  return { members: group, width, height, places };
}

/** Claimants that are connected with each other, whichever way the arrows go. */
function componentsOf(claimants, edges) {
  const leader = new Map(claimants.map((claimant) => [claimant.id, claimant.id]));
  const find = (id) => {
    while (leader.get(id) !== id) {
      leader.set(id, leader.get(leader.get(id)));
      id = leader.get(id);
    }
    return id;
  };
  for (const { from, to } of edges) leader.set(find(from), find(to));
  const components = new Map();
  for (const claimant of claimants) {
    const id = find(claimant.id);
    if (!components.has(id)) components.set(id, { claimants: [], edges: [] });
    components.get(id).claimants.push(claimant);
  }
  for (const edge of edges) components.get(find(edge.from)).edges.push(edge);
  return [...components.values()];
}

/** The places of all claimants, by id, and the size of the picture: components side by side, in rows. */
function layOut(claimants, edges) {
  const places = new Map();
  let [x, y, rowHeight, width] = [0, 0, 0, 0];
  for (const component of componentsOf(claimants, edges)) {
    const part = layOutComponent(component.claimants, component.edges);
    if (x > 0 && x + part.width > PICTURE_WIDTH) {
      [x, y, rowHeight] = [0, y + rowHeight + GAP.y / 2, 0];
    }
    for (const [id, place] of part.places) places.set(id, { x: x + place.x, y: y + place.y });
    width = Math.max(width, x + part.width);
    x += part.width + 2 * GAP.x;
    rowHeight = Math.max(rowHeight, part.height);
  }
  return { places, width, height: y + rowHeight };
}

/** The same for one component: in layers, those who wait above those they wait for. */
function layOutComponent(claimants, edges) {
  const after = new Map();
  for (const { from, to } of edges) after.set(from, [...(after.get(from) ?? []), to]);
  const groups = groupsOf(claimants.map((claimant) => claimant.id), after); // whom others wait for comes first
  const blocks = groups.map((group) => blockOf(mostWaitedFirst(group, edges)));
  const blockAt = new Map();
  blocks.forEach((block) => block.members.forEach((id) => blockAt.set(id, block)));
  for (const block of blocks) {
    const below = new Set(block.members.flatMap((id) => after.get(id) ?? []).map((id) => blockAt.get(id)));
    below.delete(block);
    block.below = [...below];
    block.layer = block.below.reduce((most, other) => Math.max(most, other.layer + 1), 0);
  }
  const layers = [];
  for (const block of blocks) (layers[block.layer] ??= []).push(block);
  const widths = layers.map((layer) => layer.reduce((sum, block) => sum + block.width + GAP.x, -GAP.x));
  const width = Math.max(NODE.width, ...widths);
  let bottom = layers.reduce((sum, layer) => sum + Math.max(...layer.map((block) => block.height)) + GAP.y, -GAP.y);
  const height = bottom;
  layers.forEach((layer, at) => {
    // Above the middle of those that they wait for, so that lines seldom cross.
    const middle = (block) => block.below.reduce((sum, other) => sum + other.x + other.width / 2, 0) / Math.max(1, block.below.length);
    if (at > 0) layer.sort((one, other) => middle(one) - middle(other));
    const tall = Math.max(...layer.map((block) => block.height));
    let x = (width - widths[at]) / 2;
    for (const block of layer) {
      block.x = x;
      block.y = bottom - tall + (tall - block.height) / 2;
      x += block.width + GAP.x;
    }
    bottom -= tall + GAP.y;
  });
  const places = new Map();
  for (const block of blocks) block.members.forEach((id, at) => places.set(id, { x: block.x + block.places[at][0], y: block.y + block.places[at][1] }));
  return { places, width, height };
}
