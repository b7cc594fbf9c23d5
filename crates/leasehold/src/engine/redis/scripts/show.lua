-- Who holds the lock and who waits, as JSON. Changes nothing that counts.
local modes, value = holders()
local shown = { now = text(NOW), left = redis.call('PTTL', LOCK), holders = {}, waiters = {} }
if value == MANY then
  local all = redis.call('HGETALL', HOLDERS)
  for i = 2, #all, 2 do
    local holder = read_holder(all[i])
    holder.expires = text(holder.expires)
    shown.holders[#shown.holders + 1] = holder
  end
elseif value then
  local note = note_of(value)
  local holder = note and read_holder(note) or {}
  holder.expires = nil
  shown.holders[1] = holder
end
for _, claim in ipairs(redis.call('ZRANGE', QUEUE, 0, -1)) do
  local waiter = read_waiter(claim)
  if waiter and redis.call('PUBSUB', 'NUMSUB', waiter.channel)[2] > 0 then
    shown.waiters[#shown.waiters + 1] = { since = waiter.since, mode = waiter.mode, meta = waiter.meta }
  end
end
-- An empty list would be written as an empty object.
shown.holders = shown.holders[1] and shown.holders
shown.waiters = shown.waiters[1] and shown.waiters
return cjson.encode(shown)
