-- Grants the whole TTL anew to one who holds the lock. ARGV: stripe, claim, mode, ttl, meta, its token if it is to be
-- planted where this server lacks it (else '0'), the max_ttl ('0': no mark is kept).
local before = redis.call('PTTL', LOCK)
if ARGV[7] == '0' and before <= tonumber(ARGV[4]) and redis.call('GET', LOCK) == CLAIM then
  local note = redis.call('GET', HOLDERS)
  redis.call('PEXPIRE', LOCK, ARGV[4])
  redis.call('PEXPIRE', HOLDERS, ARGV[4])
  return { 'granted', note and string.match(note, '=(%d+):') or '0' }
end

