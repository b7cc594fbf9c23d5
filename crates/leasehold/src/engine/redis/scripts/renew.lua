local mode, ttl, planted = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[6])
local token = extend(CLAIM, ttl)
-- By the rules of a grant, on a server that has forgotten it or never had it.
if not token and planted > last_number() and fits(mode, (holders())) then
  forget_waiter(CLAIM)
  redis.call('HSET', REGISTER, STRIPE, text(planted))
  hold(CLAIM, mode, ttl, planted, ARGV[5])
  token = text(planted)
end
if not token then
  return { 'lost' }
end
if before > ttl then
  nudge(ttl)
end
return { check_mark(ARGV[7]) and 'planted' or 'granted', token }
