-- Held by one other, and the claim joins the queue; or it was offered to this claim, with the token that it proposed. Without the
-- functions that all the rest needs. The rules are those of acquire.lua.
local alone, number, channel = string.match(ARGV[5] or '', '^0:1:(%d):(%d+):(.*)$')
if votes and not taken and alone then
  local own, value = string.sub(ARGV[1], 1, 32), redis.call('GET', KEYS[1])
  local prefix = string.find(KEYS[2], '\1queue\1', 1, true) - 1
  local holder, attempt, token, under = string.match(value or '', '^([^=]+)=(%d+):%d+:(%d+):%d+:(%d+):')
  if alone == '0' and holder == own and attempt == '0' and token == ARGV[3] then
    redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
    return 1
  elseif holder and holder ~= own and tonumber(under) == prefix and not redis.call('ZSCORE', KEYS[2], own) then
    local time = redis.call('TIME')
    local now = time[1] .. string.sub('00000' .. time[2], -6)
    local position, proposed = ARGV[3], ARGV[3]
    if alone == '1' then
      proposed = '0'
      position = redis.call('ZADD', KEYS[3], 'GT', 'CH', now, ARGV[4]) == 1 and now
        or redis.call('ZINCRBY', KEYS[3], '1', ARGV[4])
    end
    local waiters = string.sub(KEYS[2], 1, prefix) .. '\1waiters\1' .. string.sub(KEYS[2], prefix + 8)
    local meta = string.match(ARGV[1], '^[^:]*:[^:]*:[^:]*:[^:]*:[^:]*:(.*)$')
    redis.call('ZADD', KEYS[2], position, own)
    redis.call('HSET', waiters, own, #channel .. ':' .. channel .. number .. ':' .. now .. ':' .. ARGV[2] .. ':0:' .. proposed .. ':0:' .. meta)
    -- In milliseconds: see FORGET_QUEUE.
    redis.call('PEXPIRE', KEYS[2], '90000000')
    redis.call('PEXPIRE', waiters, '90000000')
    -- Two others are looked at, and removed if they are dead.
    for _, other in ipairs(redis.call('ZRANDMEMBER', KEYS[2], '2')) do
      local note = other ~= own and redis.call('HGET', waiters, other)
      local colon = note and string.find(note, ':', 1, true)
      if note and redis.call('PUBSUB', 'NUMSUB', string.sub(note, colon + 1, colon + string.sub(note, 1, colon - 1)))[2] == 0 then
        redis.call('ZREM', KEYS[2], other)
        redis.call('HDEL', waiters, other)
      end
    end
    return { 'held', redis.call('PTTL', KEYS[1]), redis.call('ZRANK', KEYS[2], own), 1, now }
  end
end

