-- A write to a guarded record: a hash of `value`, `version`, `token` and, where known, `lock`.
-- KEYS: the record. ARGV: the value; then either 'fenced', the token, the lock or '',
-- or 'checked', the version that is expected or '' for no record.
local there = redis.call('HMGET', KEYS[1], 'version', 'token', 'lock')
local version, token, lock = there[1], there[2], there[3]
if ARGV[2] == 'fenced' then
  if lock and ARGV[4] ~= '' and lock ~= ARGV[4] then
    return { 'other lock', lock }
  end
  -- Tokens are below 2^53, so numbers keep them exact.
  if token and tonumber(ARGV[3]) < tonumber(token) then
    return { 'refused', token }
  end
  token = ARGV[3]
  if ARGV[4] ~= '' then
    lock = ARGV[4]
  end
else
  if (version or '') ~= ARGV[3] then
    return { 'changed', version or '' }
  end
  token = token or '0'
end
version = string.format('%.0f', (tonumber(version or '0')) + 1)
redis.call('HSET', KEYS[1], 'value', ARGV[1], 'version', version, 'token', token)
if lock then
  redis.call('HSET', KEYS[1], 'lock', lock)
end
return { 'written', version }
