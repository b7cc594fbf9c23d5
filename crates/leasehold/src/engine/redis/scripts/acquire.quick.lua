-- One attempt. ARGV: see acquire.lua. Free, and nobody waits: the lock is set before the register is, so that an attempt that
-- finds it taken leaves the register alone. Nothing else is done before this, not even a function defined: that would cost more.
-- A register that has no token to compare with may have been lost: the rest then takes one from the server's own clock.
local votes = true
local taken = redis.call('EXISTS', KEYS[2]) == 0 and redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2])
if taken and redis.pcall('ZADD', KEYS[3], 'XX', 'GT', 'CH', ARGV[3], ARGV[4]) == 1 then
  return 1
end

