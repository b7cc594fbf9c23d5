local ttl = tonumber(ARGV[3])
local token = extend(CLAIM, ttl)
if not token then
  return { 'lost' }
end
if before > ttl then
  nudge(ttl)
end
return { 'granted', token }
