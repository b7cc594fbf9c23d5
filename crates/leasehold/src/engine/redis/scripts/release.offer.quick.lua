-- Offers the lock to the first in the queue, if that one is to hold it alone and lives. Without the functions that all the rest needs; the
-- rules are those of admit.
local offered = false
local claim = held and redis.call('ZRANGE', KEYS[2], '0', '0')[1]
if claim then
  local prefix = string.find(KEYS[2], '\1queue\1', 1, true) - 1
  local before, behind = string.sub(KEYS[2], 1, prefix), string.sub(KEYS[2], prefix + 8)
  local waiters = before .. '\1waiters\1' .. behind
  local note = redis.call('HGET', waiters, claim)
  local colon = note and string.find(note, ':', 1, true)
  local last = note and colon + string.sub(note, 1, colon - 1)
  local channel = note and string.sub(note, colon + 1, last)
  local number, ttl, proposed, meta
  if note then
    number, ttl, proposed, meta = string.match(note, '^(%d+):%d+:(%d+):0:(%d+):%d+:(.*)$', last + 1)
  end
  if number and redis.call('PUBSUB', 'NUMSUB', channel)[2] > 0 then
    local register = KEYS[3] or before .. '\1register'
    local stripe = tostring(string.match(behind, '^{(%d+)}') % 1024)
    local time = redis.call('TIME')
    local now = time[1] .. string.sub('00000' .. time[2], -6)
    local token = proposed == '0' and now or proposed
    if redis.call('ZADD', register, 'GT', 'CH', token, stripe) == 0 then
      token = proposed == '0' and redis.call('ZINCRBY', register, '1', stripe)
    end
    if token then
      local lasts = tonumber(ttl) < 500 and ttl or '500'
      redis.call('ZREM', KEYS[2], claim)
      redis.call('HDEL', waiters, claim)
      redis.call('SET', KEYS[1], claim .. '=0:' .. lasts .. ':' .. token .. ':' .. now .. ':' .. prefix .. ':' .. meta, 'PX', lasts)
      local told = 'granted:' .. number .. ':' .. token .. ':' .. lasts .. ':' .. now
      if string.find(channel, '\1inbox\1', 1, true) then
        redis.call('RPUSH', channel, told)
        redis.call('PEXPIRE', channel, '1000')
      else
        redis.call('PUBLISH', channel, told)
      end
      local one, other = string.match(redis.call('GET', before .. '\1watchers\1' .. behind) or '', '^(.+) (.+)$')
      if one and redis.call('ZSCORE', KEYS[2], one) and redis.call('ZSCORE', KEYS[2], other)
        or redis.call('EXISTS', KEYS[2]) == 0
      then
        return 1
      end
      offered = true
    end
  end
end

