-- One attempt. ARGV: stripe, claim, mode, ttl, whether it queues, the channel it listens on and its number there,
-- meta, the proposed token ('0': this server decides), the max_ttl ('0': no mark is kept).

-- Nobody there.
if ARGV[3] == '0' and redis.call('EXISTS', QUEUE) == 0 then
  local known = redis.call('HMGET', REGISTER, STRIPE, 'mark')
  local last = tonumber(known[1] or '0')
  local token = ARGV[9]
  if token == '0' then
    token = last < NOW and NOW_TEXT or string.format('%.0f', last + 1)
  end
  if (ARGV[10] == '0' or known[2] == ARGV[10])
    and tonumber(token) > last
    and redis.call('SET', LOCK, CLAIM, 'NX', 'PX', ARGV[4])
  then
    redis.call('HSET', REGISTER, STRIPE, token)
    redis.call('SET', HOLDERS, CLAIM .. '=' .. token .. ':' .. NOW_TEXT .. ':0:0:' .. ARGV[8], 'PX', ARGV[4])
    return { 'granted', token, NOW_TEXT }
  end
end

