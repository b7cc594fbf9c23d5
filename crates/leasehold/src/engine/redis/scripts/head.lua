-- Stands before each script: the keys, and what is needed on the way that most calls go. Functions come
-- later: to define them costs more than such a call.
--
-- KEYS: the lock, its holders, its queue, its waiters, the register of tokens.
--
-- A lock held by one is a plain string whose value is the claim id, as other Redis clients write it; its
-- HOLDERS is a string: that claim's id and note. A lock held by many is the string MANY; its HOLDERS is a hash
-- of claim id to note. QUEUE is a sorted set of claim ids, WAITERS a hash of claim id to note. REGISTER is a
-- hash of stripe to greatest token, and of two fields more: `mark`, the max_ttl of a deployment of several
-- servers, which a server that has lost its memory lacks; and `blank`, since when it has been seen without.
local LOCK, HOLDERS, QUEUE, WAITERS, REGISTER = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local STRIPE, CLAIM = ARGV[1], ARGV[2]
local MANY = '\1many'
local EXCLUSIVE, SHARED = 0, -1

-- In microseconds, as a number and as text; joined by hand, since formatting such numbers is slow.
local time = redis.call('TIME')
local NOW = time[1] * 1000000 + time[2]
local NOW_TEXT = time[1] .. string.sub('00000' .. time[2], -6)

