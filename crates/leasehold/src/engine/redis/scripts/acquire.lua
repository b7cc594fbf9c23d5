-- ARGV: the lock's value if this claim alone is to hold it, ttl, the proposed token, stripe; unless all is as it mostly is,
-- `mode:queues:alone:number:channel`; and the mark, if one is kept. `queues`: 0 if the claim does not queue, 1 if it does, 2 if its process
-- does not listen yet and will attempt again: a place that it has from another process stays. `alone`: this server decides, and raises a token
-- that is behind; else its answer is one of several votes.
local own = read_value(ARGV[1])
local mode, queues, alone, number, channel = string.match(ARGV[5] or '0:0:1:0:', '^(%-?%d+):(%d):(%d):(%d+):(.*)$')
local later = queues == '2'
mode, queues, alone = tonumber(mode), queues == '1', alone == '1'
local ttl, attempt = own.ttl, own.attempt
-- 0: this server decides when it is the claim's turn.
local proposed = alone and 0 or tonumber(own.token)

-- The quick way got the lock, and not the token.
if taken then
  local last = redis.pcall('ZSCORE', REGISTER, STRIPE)
  if type(last) == 'table' then
    redis.call('DEL', LOCK)
    return { 'other layout' }
  elseif not alone then
    redis.call('DEL', LOCK)
    return { 'behind', text(tonumber(last)) }
  end
  local token = next_number()
  hold(CLAIM, mode, ttl, token, attempt, own.meta)
  return token
end

local cannot_vote = check_mark()
if cannot_vote then
  return cannot_vote
end

-- Held already by this very claim: it was offered, or the reply was lost. A vote for another token than the one that is proposed lasts no longer
-- than it would without this attempt: two processes that each have some votes, and ask for all, would else keep them for ever.
local held = holder_of(CLAIM, redis.call('GET', LOCK))
if held and held.mode ~= mode and (held.expires or NOW + 1) > NOW then
  return { 'mismatch', text(held.mode) }
end
local is_other = not alone and held and held.token ~= own.token
local token = extend(CLAIM, is_other and 0 or ttl, false, attempt)
if token then
  return { 'granted', token }
end

-- All claims on the lock should say the same number of permits. One that slips through does not fit beside the others.
if mode > 0 then
  local there = holders()
  for _, waiter in ipairs(keep_living(0, CHECKED)) do
    there[#there + 1] = waiter.mode
  end
  for _, other in ipairs(there) do
    if other > 0 and other ~= mode then
      return { 'mismatch', text(other) }
    end
  end
end

-- A proposed token is also the position in the queue: all servers then have the same order by themselves.
local waiter = read_waiter(CLAIM)
local is_new = not waiter or waiter.proposed ~= proposed
if is_new then
  redis.call('ZADD', QUEUE, text(proposed > 0 and proposed or next_number()), CLAIM)
end
-- The same claim may come back through another process, which counts its waiters for itself; and with other terms, which count from now on.
if not is_new and later then
  number, channel = waiter.number, waiter.channel
end
if is_new or waiter.number ~= number or waiter.channel ~= channel or waiter.ttl ~= ttl or waiter.mode ~= mode then
  write_waiter(own, mode, proposed, number, channel)
end
local own_token, modes, again = admit(CLAIM, attempt)
if own_token then
  return { 'granted', text(own_token) }
end
local rank = redis.call('ZRANK', QUEUE, CLAIM)
if rank == 0 and not again and fits(mode, modes) then
  remove_waiter(CLAIM)
  return { 'behind', text(last_number()) }
end
if not queues then
  if is_new or not later then
    leave_queue(CLAIM)
  end
else
  if is_new then
    -- Other ones each time.
    remove_dead(NOW % redis.call('ZCARD', QUEUE), CHECKED)
  end
  redis.call('PEXPIRE', QUEUE, FORGET_QUEUE)
  redis.call('PEXPIRE', WAITERS, FORGET_QUEUE)
end
local left = again or time_left()
-- Another program sends no message when it releases: the first in the queue looks often, and the others now and then, in case
-- that one has left, or hangs.
if is_foreign(redis.call('GET', LOCK)) then
  local interval = rank == 0 and FOREIGN_INTERVAL or 10 * FOREIGN_INTERVAL
  left = left < 0 and interval or math.min(left, interval)
end
return { 'held', text(left), text(rank), text(#modes), NOW_TEXT }
