-- Gives a holder the TTL from now on, or what is left if that is more. ARGV: `claim=`, ttl, whether it ends after the ttl even if more is
-- left ('1'), the number of the attempt to note, and the mark, if one is kept.
local ttl, shorten = tonumber(ARGV[2]), ARGV[3] == '1'
local before = redis.call('PTTL', LOCK)
local token = extend(CLAIM, ttl, shorten, tonumber(ARGV[4]))
if not token then
  return { 'lost' }
end
if shorten and before > ttl then
  notify_position(0, ttl)
  -- The first may hang, and nobody else knows that the lock ends sooner.
  if redis.call('ZCARD', QUEUE) > 1 then
    notify_position(-1, ttl + OFFER)
  end
end
return check_mark() or { 'granted', token }
