-- A write to a guarded record: a hash of `version`, `token`, where known `lock`, and, unless it was deleted, `value`.
-- KEYS: the record. ARGV: 'put' or 'delete'; the value; the lifetime in milliseconds, or '' for ever; then either 'fenced', the
-- token, the lock or '', or 'checked', the version that is expected or '' for no record.
local there = redis.call('HMGET', KEYS[1], 'version', 'token', 'lock')
local version, token, lock = there[1], there[2], there[3]
if ARGV[4] == 'fenced' then
  if lock and ARGV[6] ~= '' and lock ~= ARGV[6] then
    return { 'other lock', lock }
  end
  -- Tokens are below 2^53, so numbers keep them exact.
  if token and tonumber(ARGV[5]) < tonumber(token) then
    return { 'refused', token }
  end
  token = ARGV[5]
  if ARGV[6] ~= '' then
    lock = ARGV[6]
  end
else
  local now = ''
  if redis.call('HEXISTS', KEYS[1], 'value') == 1 then
    now = version
  end
  if now ~= ARGV[5] then
    return { 'changed', now }
  end
  token = token or '0'
end
if version then
  version = string.format('%.0f', tonumber(version) + 1)
else
  -- Whatever was here before has not reached this.
  local time = redis.call('TIME')
  version = string.format('%.0f', time[1] * 1000000 + time[2])
end
redis.call('HSET', KEYS[1], 'version', version, 'token', token)
if lock then
  redis.call('HSET', KEYS[1], 'lock', lock)
end
if ARGV[1] == 'put' then
  redis.call('HSET', KEYS[1], 'value', ARGV[2])
else
  redis.call('HDEL', KEYS[1], 'value')
end
if ARGV[3] == '' then
  redis.call('PERSIST', KEYS[1])
else
  redis.call('PEXPIRE', KEYS[1], ARGV[3])
end
return { 'written', version }
