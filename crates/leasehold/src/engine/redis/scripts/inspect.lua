-- Who holds the lock and who waits, as JSON. Writes nothing: neither to this lock nor to a key that only begins alike.
local value = redis.call('GET', LOCK)
local shown = { now = text(NOW), left = redis.call('PTTL', LOCK), holders = {}, waiters = {} }
if is_foreign(value) then
  shown.holders[1] = {}
elseif value == MANY then
  shown.holders = read_many()
  for _, holder in ipairs(shown.holders) do
    holder.expires = text(holder.expires)
  end
elseif value then
  shown.holders[1] = read_value(value)
end
for _, claim in ipairs(redis.call('ZRANGE', QUEUE, 0, -1)) do
  local waiter = read_waiter(claim)
  if waiter and is_alive(waiter) then
    shown.waiters[#shown.waiters + 1] = { since = waiter.since, mode = waiter.mode, meta = waiter.meta }
  end
end
-- Claim ids are secrets.
for _, holder in ipairs(shown.holders) do
  holder.claim = nil
end
-- An empty list would be written as an empty object.
shown.holders = shown.holders[1] and shown.holders
shown.waiters = shown.waiters[1] and shown.waiters
return cjson.encode(shown)
