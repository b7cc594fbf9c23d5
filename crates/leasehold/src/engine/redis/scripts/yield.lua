-- Too few servers have granted this claim: it goes back to its place in the queue, and whoever is next gets the lock.
-- ARGV: as in an attempt.
local note = waiter_note(ARGV[7], tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[9]), ARGV[6], ARGV[8])
if drop(CLAIM) then
  redis.call('ZADD', QUEUE, ARGV[9], CLAIM)
  redis.call('HSET', WAITERS, CLAIM, note)
  redis.call('PEXPIRE', QUEUE, FORGET_QUEUE)
  redis.call('PEXPIRE', WAITERS, FORGET_QUEUE)
  admit(nil)
end
return { 'yielded' }
