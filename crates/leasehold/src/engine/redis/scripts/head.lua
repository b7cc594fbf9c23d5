-- Stands before what is done when there is more to do than most calls have.
--
-- KEYS: the lock, its queue and, where there is more than one, the register of tokens. Their names tell those of its waiters and
-- holders: keys in the same slot.
-- ARGV: the first begins with the claim id and `=`; the last may be the mark.
--
-- A lock held by one is a string, `claim=attempt:ttl:token:since:prefix:meta`: other Redis clients only compare it with
-- their own. `ttl` is the TTL that it was given last, so no more can be left; `prefix` tells apart prefixes that reach the
-- same key: it is the length of the one under which the lock was taken. A lock held by many is the string MANY; its
-- HOLDERS is a hash of claim id to note. QUEUE is a sorted set of claim ids, WAITERS a hash of claim id to note.
--
-- REGISTER is a sorted set of stripes, each with its greatest token. Where there is a max_ttl, it also has `mark:max_ttl:run`
-- with 0: the server may vote in this run; or `blank:run` with a negative number: since when, in microseconds, it has been
-- seen without a mark in that run. A server that has lost its memory lacks them, and one that comes back with an old memory has
-- those of another run.
local LOCK, QUEUE = KEYS[1], KEYS[2]
local CLAIM, MARK = string.match(ARGV[1], '^[^=]*'), string.match(ARGV[#ARGV], '^mark:.*$')
local PREFIX = string.find(QUEUE, '\1queue\1', 1, true) - 1
local function beside(what)
  return string.sub(QUEUE, 1, PREFIX) .. '\1' .. what
end
local tagged = string.sub(QUEUE, PREFIX + 8)
local WAITERS, HOLDERS = beside('waiters\1' .. tagged), beside('holders\1' .. tagged)
-- Who looks when the offers of now are over.
local WATCHERS = beside('watchers\1' .. tagged)
local REGISTER = KEYS[3] or beside('register')
local STRIPE = tostring(string.match(tagged, '^{(%d+)}') % 1024)
-- Another one under each prefix: notes under one say nothing of a lock that was taken under another.
local MANY = '\1many' .. HOLDERS
local EXCLUSIVE, SHARED = 0, -1

-- In microseconds, as a number and as text; joined by hand, since formatting such numbers is slow.
local time = redis.call('TIME')
local NOW = time[1] * 1000000 + time[2]
local NOW_TEXT = time[1] .. string.sub('00000' .. time[2], -6)

