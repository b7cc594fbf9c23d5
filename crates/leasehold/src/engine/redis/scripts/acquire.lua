local mode, ttl, queues = tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5] == '1'
local channel, number, meta = ARGV[6], ARGV[7], ARGV[8]

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

local queued = redis.call('HEXISTS', WAITERS, CLAIM) == 1
if not queued then
  redis.call('ZADD', QUEUE, text(next_number()), CLAIM)
  redis.call('HSET', WAITERS, CLAIM, waiter_note(number, mode, ttl, channel, meta))
end
local own, modes = admit(CLAIM)
if own then
  return { 'granted', text(own), NOW_TEXT }
end
local rank = redis.call('ZRANK', QUEUE, CLAIM)
if not queues then
  forget_waiter(CLAIM)
else
  redis.call('PEXPIRE', QUEUE, FORGET_QUEUE)
  redis.call('PEXPIRE', WAITERS, FORGET_QUEUE)
end
return { 'held', text(time_left()), NOW_TEXT, text(rank), text(#modes) }
