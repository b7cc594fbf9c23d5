-- What the scripts share when there is more to do.

-- In milliseconds: how long an offer lasts unless the new holder asks for the lock. A host that is gone without its connections
-- having ended costs the queue no more than this.
local OFFER = 500

-- In milliseconds: a queue that nobody has joined or looked at for so long expires. Every waiter looks at least once per TTL, which is a day
-- at most, and an hour is left for the look to be late.
local FORGET_QUEUE = 25 * 60 * 60 * 1000

-- How many waiters are checked whenever another one joins the queue, and removed if they are dead.
local CHECKED = 2

-- How many dead waiters a script removes at most: it blocks the server while it runs.
local MOST_REMOVED = 100

-- How many waiters are searched for a living one; to check one is quicker than to remove it.
local MOST_SEARCHED = 1000

-- In milliseconds: how often the first in the queue looks at a lock that another program holds. The others look a tenth as often.
local FOREIGN_INTERVAL = 100

-- How many attempts a process numbers together, and what is noted in place of a number once no attempt may give the lock back: see proposals.rs.
local ATTEMPTS = 33554432
local RENEWED = 9007199254740991

local function text(number)
  return string.format('%.0f', number)
end

local function last_number()
  return tonumber(redis.call('ZSCORE', REGISTER, STRIPE) or '0')
end

local function set_number(number)
  redis.call('ZADD', REGISTER, text(number), STRIPE)
  return number
end

-- The hybrid clock: greater than all before, and not behind the wall clock.
local function next_number()
  if redis.call('ZADD', REGISTER, 'GT', 'CH', NOW_TEXT, STRIPE) == 1 then
    return NOW
  end
  return tonumber(redis.call('ZINCRBY', REGISTER, '1', STRIPE))
end

-- In seconds, never more than has passed: the server counts from the whole second in which it started.
local function uptime()
  local seconds = string.match(redis.call('INFO', 'server'), 'uptime_in_seconds:(%d+)') or '0'
  return math.max(0, seconds - 1)
end

-- The max_ttl and the run of a mark; nothing if it is none.
local function read_mark(member)
  return string.match(member, '^mark:(%d+):(.*)$')
end

-- What is not a stripe in the register: the mark, and since when the server has been without.
local function not_stripes()
  return redis.call('ZRANGEBYSCORE', REGISTER, '-inf', '0')
end

-- The max_ttl that this server is used with, if any.
local function known_max_ttl()
  for _, member in ipairs(not_stripes()) do
    local max_ttl = read_mark(member)
    if max_ttl then
      return max_ttl
    end
  end
end

local function replace_mark(score, member)
  for _, old in ipairs(not_stripes()) do
    if score == '0' or not read_mark(old) then
      redis.call('ZREM', REGISTER, old)
    end
  end
  redis.call('ZADD', REGISTER, score, member)
end

local function set_mark()
  replace_mark('0', MARK)
end

-- Whether this server may vote: nil, or the answer that says why not. One without a mark of this run has lost its memory,
-- or some of it, or is new; it may vote once all that it can have forgotten has expired.
local function check_mark()
  if not MARK or redis.call('ZSCORE', REGISTER, MARK) then
    return nil
  end
  local max_ttl, run = read_mark(MARK)
  local known = known_max_ttl()
  if known and known ~= max_ttl then
    return { 'other max_ttl', known }
  end
  local since = -tonumber(redis.call('ZSCORE', REGISTER, 'blank:' .. run) or '1')
  -- One from the future was noted before the clock was set back.
  if since < 0 or since > NOW then
    since = NOW
    replace_mark('-' .. NOW_TEXT, 'blank:' .. run)
  end
  local left = max_ttl - (NOW - since) / 1000
  if left <= 0 then
    set_mark()
    return nil
  end
  return { 'blank', text(left), text(uptime()) }
end

-- One who holds a lock alone: what its value says; nil if another program has written it.
local function read_value(value)
  local claim, attempt, ttl, token, since, prefix, meta =
    string.match(value, '^([^=]+)=(%d+):(%d+):(%d+):(%d+):(%d+):(.*)$')
  return claim and {
    claim = claim,
    -- The last attempt whose answer was this grant; 0 while it is an offer.
    attempt = tonumber(attempt),
    ttl = tonumber(ttl),
    token = token,
    since = since,
    mode = EXCLUSIVE,
    prefix = prefix,
    meta = meta,
  }
end

local function write_value(holder, ttl)
  local note = table.concat({
    text(holder.attempt), ttl, holder.token, holder.since, holder.prefix, holder.meta,
  }, ':')
  redis.call('SET', LOCK, holder.claim .. '=' .. note, 'PX', ttl)
end

-- One of many who hold a lock.
local function holder_note(holder)
  return table.concat({
    holder.token, holder.since, text(holder.expires), text(holder.mode), text(holder.attempt), holder.meta,
  }, ':')
end

local function read_holder(note)
  local token, since, expires, mode, attempt, meta =
    string.match(note, '^(%d+):(%d+):(%d+):(%-?%d+):(%d+):(.*)$')
  return {
    token = token,
    since = since,
    expires = tonumber(expires),
    mode = tonumber(mode),
    attempt = tonumber(attempt),
    meta = meta,
  }
end

-- A claim that holds a lock of this value, alone or among many; nil if it holds nothing, or if its note is gone.
local function holder_of(claim, value)
  if value == MANY then
    local note = redis.call('HGET', HOLDERS, claim)
    return note and read_holder(note)
  end
  local holder = value and read_value(value)
  return holder and holder.claim == claim and holder or nil
end

-- The channel comes first, since it is read most often.
local function waiter_note(waiter)
  return table.concat({
    #waiter.channel .. ':' .. waiter.channel .. waiter.number, waiter.since, text(waiter.ttl), text(waiter.mode),
    text(waiter.proposed), text(waiter.asked_at), waiter.meta,
  }, ':')
end

-- Notes the claim of this script as a waiter.
local function write_waiter(own, mode, proposed, number, channel)
  redis.call('HSET', WAITERS, CLAIM, waiter_note({
    number = number, since = NOW_TEXT, ttl = own.ttl, mode = mode, proposed = proposed, asked_at = 0, channel = channel,
    meta = own.meta,
  }))
end

-- The channel of a waiter with this note, and where the rest of the note begins.
local function channel_in(note)
  local colon = string.find(note, ':', 1, true)
  local last = colon + string.sub(note, 1, colon - 1)
  return string.sub(note, colon + 1, last), last + 1
end

local function read_waiter(claim)
  local note = redis.call('HGET', WAITERS, claim)
  if not note then
    return nil
  end
  local channel, rest = channel_in(note)
  local number, since, ttl, mode, proposed, asked_at, meta =
    string.match(note, '^(%d+):(%d+):(%d+):(%-?%d+):(%d+):(%d+):(.*)$', rest)
  return {
    number = number,
    since = since,
    ttl = tonumber(ttl),
    mode = tonumber(mode),
    proposed = tonumber(proposed),
    -- When it was asked to propose anew, if it has not attempted since; else 0.
    asked_at = tonumber(asked_at),
    channel = channel,
    meta = meta,
  }
end

local function remove_waiter(claim)
  redis.call('ZREM', QUEUE, claim)
  redis.call('HDEL', WAITERS, claim)
end

-- The holders of a lock that is held by many: those that have not expired, and the claims of those that have. Changes nothing.
local function read_many()
  local current, expired = {}, {}
  local all = redis.call('HGETALL', HOLDERS)
  for i = 1, #all, 2 do
    local holder = read_holder(all[i + 1])
    if holder.expires > NOW then
      current[#current + 1] = holder
    else
      expired[#expired + 1] = all[i]
    end
  end
  return current, expired
end

-- Whether a lock of this value is held by another program, by a client with another prefix that reaches the same key, or by
-- many whose notes are gone.
local function is_foreign(value)
  if value == MANY then
    return redis.call('EXISTS', HOLDERS) == 0
  end
  local holder = value and read_value(value)
  return value and not (holder and tonumber(holder.prefix) == PREFIX)
end

-- Removes one holder of a lock that is held by many. With the last one the lock is free. A lock that has no notes to remove is
-- someone else's, and stays.
local function remove_one_of_many(claim)
  redis.call('HDEL', HOLDERS, claim)
  if redis.call('EXISTS', HOLDERS) == 0 then
    redis.call('DEL', LOCK)
  end
end

-- The modes of the holders. Whatever someone else has put there is an exclusive one.
local function holders()
  local value = redis.call('GET', LOCK)
  if not value then
    redis.call('DEL', HOLDERS)
    return {}
  end
  if value ~= MANY then
    return { EXCLUSIVE }
  end
  local current, expired = read_many()
  if #current + #expired == 0 then
    return { EXCLUSIVE }
  end
  for _, claim in ipairs(expired) do
    remove_one_of_many(claim)
  end
  local modes = {}
  for i, holder in ipairs(current) do
    modes[i] = holder.mode
  end
  return modes
end

-- In milliseconds, until the first of the holders expires; -1 for never, as another program may have it.
local function time_left()
  local current = redis.call('GET', LOCK) == MANY and read_many() or {}
  if #current == 0 then
    return redis.call('PTTL', LOCK)
  end
  local first = math.huge
  for _, holder in ipairs(current) do
    first = math.min(first, holder.expires)
  end
  return math.max(0, math.ceil((first - NOW) / 1000))
end

local function fits(mode, modes)
  if #modes == 0 then
    return true
  end
  if mode == EXCLUSIVE or modes[1] == EXCLUSIVE then
    return false
  end
  if mode == SHARED or modes[1] == SHARED then
    return mode == modes[1]
  end
  return mode == modes[1] and #modes < mode
end

local function hold(claim, mode, ttl, token, attempt, meta)
  local holder = {
    claim = claim, token = text(token), since = NOW_TEXT, mode = mode, attempt = attempt, prefix = tostring(PREFIX), meta = meta,
  }
  if mode == EXCLUSIVE then
    write_value(holder, ttl)
  else
    holder.expires = NOW + ttl * 1000
    local longest = math.max(redis.call('PTTL', LOCK), ttl)
    redis.call('SET', LOCK, MANY, 'PX', longest)
    redis.call('HSET', HOLDERS, claim, holder_note(holder))
    redis.call('PEXPIRE', HOLDERS, longest)
  end
end

-- Whether the attempt that is noted was that of another process.
local function is_of_another(noted, attempt)
  return noted ~= 0 and math.floor(noted / ATTEMPTS) ~= math.floor(attempt / ATTEMPTS)
end

-- Gives a holder the TTL from now on, or leaves it what it has left if that is more, unless it is to be shortened. Notes the
-- attempt that gets this answer; what was the answer to two processes is given back by neither, since each may rely on it. Returns
-- the token, or nil if the claim does not hold the lock or its note is gone.
local function extend(claim, ttl, shorten, attempt)
  local value = redis.call('GET', LOCK)
  local holder = holder_of(claim, value)
  if not holder then
    return nil
  end
  local attempt = is_of_another(holder.attempt, attempt) and RENEWED or math.max(holder.attempt, attempt)
  if value ~= MANY then
    holder.attempt = attempt
    if redis.call('PTTL', LOCK) >= ttl and not shorten then
      -- What is left is no more than the TTL that is noted. Written even if nothing changes: some servers let whoever has written nothing wait for
      -- no replica.
      redis.call('SET', LOCK, string.gsub(value, '=%d+', '=' .. text(attempt), 1), 'KEEPTTL')
    else
      write_value(holder, ttl)
    end
    return holder.token
  elseif holder.expires <= NOW then
    return nil
  end
  local expires = NOW + ttl * 1000
  holder.expires = shorten and expires or math.max(expires, holder.expires)
  holder.attempt = attempt
  redis.call('HSET', HOLDERS, claim, holder_note(holder))
  local longest = math.max(redis.call('PTTL', LOCK), ttl)
  redis.call('PEXPIRE', LOCK, longest)
  redis.call('PEXPIRE', HOLDERS, longest)
  return holder.token
end

-- Waiters of a process that has ended are dead: nobody is subscribed to their channel.
local function is_heard(channel)
  return redis.call('PUBSUB', 'NUMSUB', channel)[2] > 0
end

local function is_alive(waiter)
  return is_heard(waiter.channel)
end

-- Removes the dead among so many waiters from this position in the queue on.
local function remove_dead(first, count)
  for _, claim in ipairs(redis.call('ZRANGE', QUEUE, first, first + count - 1)) do
    local note = claim ~= CLAIM and redis.call('HGET', WAITERS, claim)
    if claim ~= CLAIM and not (note and is_heard(channel_in(note))) then
      remove_waiter(claim)
    end
  end
end

-- The living among so many waiters from this position in the queue on. The dead are removed.
local function keep_living(first, count)
  remove_dead(first, count)
  local found = {}
  for _, claim in ipairs(redis.call('ZRANGE', QUEUE, first, first + count - 1)) do
    found[#found + 1] = read_waiter(claim)
  end
  return found
end

-- Tells a waiter to look after so many milliseconds. Returns whether the waiter is alive; the number of receivers does not tell,
-- since a program that is subscribed to all channels counts too.
local function tell_to_look(waiter, after)
  local alive = is_alive(waiter)
  if alive then
    redis.call('PUBLISH', waiter.channel, 'look:' .. waiter.number .. ':' .. after)
  end
  return alive
end

-- Tells a waiter that the lock is offered to it. Returns whether the waiter is alive. Into its inbox where it has one, a list that its
-- process pops: only who may write keys can do that, so what is there is true.
local function tell_of_offer(waiter, token, lasts)
  local alive = is_alive(waiter)
  local told = 'granted:' .. waiter.number .. ':' .. text(token) .. ':' .. lasts .. ':' .. NOW_TEXT
  if not alive then
    return false
  elseif string.find(waiter.channel, '\1inbox\1', 1, true) then
    redis.call('RPUSH', waiter.channel, told)
    redis.call('PEXPIRE', waiter.channel, 2 * OFFER)
  else
    redis.call('PUBLISH', waiter.channel, told)
  end
  return true
end

-- There are more dead waiters than one script may remove: a living one is to attempt, which goes on with it.
local function continue_later()
  -- Waiters of one process share a channel.
  local dead = {}
  for _, claim in ipairs(redis.call('ZRANGE', QUEUE, 0, MOST_SEARCHED - 1)) do
    local waiter = read_waiter(claim)
    if waiter and not dead[waiter.channel] then
      if tell_to_look(waiter, 0) then
        return
      end
      dead[waiter.channel] = true
    end
  end
  local waiter = keep_living(math.max(0, redis.call('ZCARD', QUEUE) - CHECKED), CHECKED)[1]
  if waiter then
    tell_to_look(waiter, 0)
  end
end

-- Tells the waiter at this position in the queue to look after so many milliseconds. The dead there are removed.
local function notify_position(position, after)
  for _ = 1, MOST_REMOVED do
    local claim = redis.call('ZRANGE', QUEUE, position, position)[1]
    if not claim then
      return
    end
    local waiter = read_waiter(claim)
    -- The claim of this very attempt is alive, and may not be subscribed yet.
    if waiter and tell_to_look(waiter, after) or claim == CLAIM then
      return
    end
    remove_waiter(claim)
  end
  continue_later()
end

local function host_of(waiter)
  return string.match(waiter.meta, '"host":"([^"]*)"')
end

-- Where, counted from the end of the queue, the last waiter of another host and process than this one is; or of another process, if all are
-- of one host; or 1, just before the last one.
local function place_of_another(than, except)
  local found
  for place, claim in ipairs(redis.call('ZREVRANGE', QUEUE, 1, MOST_REMOVED)) do
    local waiter = claim ~= except and read_waiter(claim)
    if waiter and waiter.channel ~= than.channel then
      if host_of(waiter) ~= host_of(than) then
        return place
      end
      found = found or place
    end
  end
  return found or 1
end

-- Sees to it that two who wait look when an offer of now is over: the one that it was made to may hang without the server's knowledge,
-- and so may one of the two, or it leaves before it looks. The last in the queue do: they have been seen alive most recently, and
-- stay longest. They are of two processes, and of two hosts, if there are such: those of one hang together. As long as both wait they
-- need not be told again: they look too early, learn how long the offer lasts, and look once more.
local function tell_watchers(except)
  local known = redis.call('GET', WATCHERS)
  local one, other = string.match(known or '', '^(.+) (.+)$')
  if one and redis.call('ZSCORE', QUEUE, one) and redis.call('ZSCORE', QUEUE, other) then
    return
  end
  local told, first = {}, nil
  for removed = 0, MOST_REMOVED do
    local place = first and place_of_another(first, except) or #told
    local claim = redis.call('ZREVRANGE', QUEUE, place, place)[1]
    if not claim or claim == except then
      break
    end
    local waiter = read_waiter(claim)
    -- The claim of this very attempt learns from the answer when to look.
    if claim == CLAIM or waiter and tell_to_look(waiter, OFFER) then
      told[#told + 1] = claim
      first = waiter
    else
      remove_waiter(claim)
    end
    if #told == 2 then
      redis.call('SET', WATCHERS, told[1] .. ' ' .. told[2], 'PX', OFFER)
      return
    elseif removed == MOST_REMOVED then
      continue_later()
    end
  end
end

-- A waiter leaves the queue. If it was to look when the offers of now are over, others are to. If it was the first, the next one learns when the
-- lock ends: that may be sooner than it knows.
local function leave_queue(claim)
  local was_first = redis.call('ZRANK', QUEUE, claim) == 0
  remove_waiter(claim)
  if redis.call('EXISTS', WATCHERS) == 1 then
    tell_watchers()
  end
  local left = was_first and redis.call('EXISTS', QUEUE) == 1 and time_left() or -1
  if left >= 0 then
    notify_position(0, text(left))
  end
end

-- How much longer, in milliseconds, the others wait for the first in the queue to propose anew: as long as an offer lasts.
local function time_to_propose(claim, waiter)
  if waiter.asked_at == 0 and tell_to_look(waiter, 0) then
    waiter.asked_at = NOW
    redis.call('HSET', WAITERS, claim, waiter_note(waiter))
    tell_watchers(claim)
  end
  -- In the future if the clock was set back.
  local passed = math.abs(NOW - waiter.asked_at) / 1000
  return math.max(0, math.ceil(OFFER - passed))
end

-- The token for the first in the queue: the one that it has proposed, or nil if that is behind; else the next one.
local function token_for(waiter)
  if waiter.proposed == 0 then
    return next_number()
  end
  if waiter.proposed > last_number() then
    return set_number(waiter.proposed)
  end
end

-- Grants the lock to the first in the queue, again and again while it fits; the dead are removed. `own`, the claim of this very
-- attempt, has it for its TTL. To any other it is offered, with a message, until that one attempts; the last ones are told to
-- look when the offer is over. Returns the token of `own`, if it has been granted; the modes of the holders; and when to attempt again
-- if not when the lock expires, in milliseconds: 0 if there are more dead waiters.
local function admit(own, attempt)
  local modes = holders()
  local offered, own_token = false, nil
  local removed = 0
  local function remove(claim)
    remove_waiter(claim)
    removed = removed + 1
  end
  while true do
    local claim = redis.call('ZRANGE', QUEUE, 0, 0)[1]
    if not claim then
      break
    end
    if removed == MOST_REMOVED then
      continue_later()
      return own_token, modes, 0
    end
    local waiter = read_waiter(claim)
    local may_enter = waiter and fits(waiter.mode, modes)
    local token = may_enter and token_for(waiter)
    local lasts = may_enter and math.min(waiter.ttl, OFFER)
    if not waiter then
      remove(claim)
    elseif not may_enter then
      -- Beside those who share the lock, the next one may fit.
      if claim == CLAIM or #modes == 0 or modes[1] == EXCLUSIVE or is_alive(waiter) then
        break
      end
      remove(claim)
    elseif not token then
      -- It must propose anew. The claim of this very script learns that from the answer, or has just given back what it got
      -- and waits for the others.
      if claim == CLAIM then
        break
      end
      local left = time_to_propose(claim, waiter)
      if left > 0 then
        return own_token, modes, left
      end
      remove(claim)
    elseif claim == own then
      remove_waiter(claim)
      own_token = token
      hold(claim, waiter.mode, waiter.ttl, token, attempt, waiter.meta)
      modes[#modes + 1] = waiter.mode
    elseif tell_of_offer(waiter, token, lasts) then
      remove_waiter(claim)
      hold(claim, waiter.mode, lasts, token, 0, waiter.meta)
      modes[#modes + 1] = waiter.mode
      offered = true
    else
      remove(claim)
    end
  end
  if offered then
    tell_watchers()
  end
  return own_token, modes, nil
end
