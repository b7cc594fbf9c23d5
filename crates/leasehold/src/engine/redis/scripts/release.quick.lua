-- Gives up a claim, whatever has become of it. ARGV: `claim=`.
local held = redis.call('GETRANGE', KEYS[1], '0', '32') == ARGV[1]
if held then
  redis.call('DEL', KEYS[1])
  if redis.call('EXISTS', KEYS[2]) == 0 then
    return 1
  end
end

