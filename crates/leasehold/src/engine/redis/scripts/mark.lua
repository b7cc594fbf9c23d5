-- All servers of the deployment are blank and this one has been up for long enough to have forgotten nothing that
-- still counts. ARGV: stripe, '', the max_ttl.
redis.call('HSETNX', REGISTER, 'mark', ARGV[3])
redis.call('HDEL', REGISTER, 'blank')
return { 'marked' }
