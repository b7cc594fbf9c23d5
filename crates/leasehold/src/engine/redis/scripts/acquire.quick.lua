-- One attempt. ARGV: stripe, claim, mode, ttl, whether it queues, the channel it listens on and its number there,
-- meta.

-- Nobody there.
if ARGV[3] == '0' and redis.call('EXISTS', QUEUE) == 0 and redis.call('SET', LOCK, CLAIM, 'NX', 'PX', ARGV[4]) then
  local last = redis.call('HGET', REGISTER, STRIPE)
  local token = NOW_TEXT
  if last and last + 1 > NOW then
    token = string.format('%.0f', last + 1)
  end
  redis.call('HSET', REGISTER, STRIPE, token)
  redis.call('SET', HOLDERS, CLAIM .. '=' .. token .. ':' .. NOW_TEXT .. ':0:0:' .. ARGV[8], 'PX', ARGV[4])
  return { 'granted', token, NOW_TEXT }
end

