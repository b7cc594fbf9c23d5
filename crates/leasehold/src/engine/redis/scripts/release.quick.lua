-- Gives up a claim, whatever has become of it. ARGV: stripe, claim.
local value = redis.call('GET', LOCK)
local held = value == CLAIM
if held then
  redis.call('DEL', LOCK, HOLDERS)
  if redis.call('EXISTS', QUEUE) == 0 then
    return { 'released' }
  end
end

