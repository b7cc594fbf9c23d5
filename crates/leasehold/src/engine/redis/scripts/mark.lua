-- All servers of the deployment are blank, and this one has been up for long enough to have forgotten nothing that
-- still counts; unless it has started anew since it was asked. ARGV: stripe, '', the max_ttl.
if uptime() * 1000 < tonumber(ARGV[3]) then
  return { 'too young' }
end
redis.call('HSETNX', REGISTER, 'mark', ARGV[3])
redis.call('HDEL', REGISTER, 'blank')
return { 'marked' }
