-- Takes the lock away from whoever holds it. ARGV: stripe.
local modes = holders()
redis.call('DEL', LOCK, HOLDERS)
admit(nil)
return { #modes > 0 and 'released' or 'not held' }
