local mode, ttl, queues = tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5] == '1'
local channel, number, meta, proposed = ARGV[6], ARGV[7], ARGV[8], tonumber(ARGV[9])

local cannot_vote = check_mark(ARGV[10])
if cannot_vote then
  return cannot_vote
end

-- Held already by this very claim: its reply, or the message that handed it over, was lost.
local token = extend(CLAIM, ttl)
if token then
  return { 'granted', token, NOW_TEXT }
end

if mode > 0 then
  local there = holders()
  for _, packed in ipairs(redis.call('HVALS', WAITERS)) do
    there[#there + 1] = tonumber(string.match(packed, '^%d+:%d+:%d+:(%-?%d+):'))
  end
  for _, other in ipairs(there) do
    if other > 0 and other ~= mode then
      return { 'mismatch', text(other) }
    end
  end
end

-- A proposed token is also the place in the queue: all servers then have the same order by themselves.
local waiter = read_waiter(CLAIM)
local is_new = not waiter or waiter.proposed ~= proposed
if is_new then
  redis.call('ZADD', QUEUE, text(proposed > 0 and proposed or next_number()), CLAIM)
end
if is_new or waiter.number ~= number then
  redis.call('HSET', WAITERS, CLAIM, waiter_note(number, mode, ttl, proposed, channel, meta))
end
local own, modes = admit(CLAIM)
if own then
  return { 'granted', text(own), NOW_TEXT }
end
local rank = redis.call('ZRANK', QUEUE, CLAIM)
if rank == 0 and fits(mode, modes) then
  forget_waiter(CLAIM)
  return { 'behind', text(last_number()), NOW_TEXT }
end
if not queues then
  forget_waiter(CLAIM)
else
  redis.call('PEXPIRE', QUEUE, FORGET_QUEUE)
  redis.call('PEXPIRE', WAITERS, FORGET_QUEUE)
end
local left = time_left()
-- Another program tells nobody when it releases: whoever is next looks now and then.
if rank == 0 and is_foreign() then
  left = left < 0 and LOOK_AT_OTHERS or math.min(left, LOOK_AT_OTHERS)
end
return { 'held', text(left), NOW_TEXT, text(rank), text(#modes) }
