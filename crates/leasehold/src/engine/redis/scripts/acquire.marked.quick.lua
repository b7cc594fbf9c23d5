-- As acquire.quick.lua, on a server that may vote.
local votes = redis.call('ZSCORE', KEYS[3], ARGV[6])
local taken = votes and redis.call('EXISTS', KEYS[2]) == 0 and redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2])
-- One of several servers takes what was proposed, also as its first token.
local only = string.sub(ARGV[5], 5, 5) == '1' and 'XX' or 'CH'
if taken and redis.call('ZADD', KEYS[3], only, 'GT', 'CH', ARGV[3], ARGV[4]) == 1 then
  return 1
end

