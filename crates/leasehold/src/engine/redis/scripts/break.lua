-- Takes the lock away from whoever holds it. ARGV: ''.
local modes = holders()
redis.call('DEL', LOCK, HOLDERS)
admit(nil)
return #modes > 0 and 1 or 0
