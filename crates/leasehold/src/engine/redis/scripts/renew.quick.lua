-- Grants the whole TTL anew to one who holds the lock. ARGV: stripe, claim, ttl.
local before = redis.call('PTTL', LOCK)
if before <= tonumber(ARGV[3]) and redis.call('GET', LOCK) == CLAIM then
  local note = redis.call('GET', HOLDERS)
  redis.call('PEXPIRE', LOCK, ARGV[3])
  redis.call('PEXPIRE', HOLDERS, ARGV[3])
  return { 'granted', note and string.match(note, '=(%d+):') or '0' }
end

