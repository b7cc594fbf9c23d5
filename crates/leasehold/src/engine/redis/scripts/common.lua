-- What the scripts share when there is more to do.

-- For how long a lock is handed over before its new holder has said a word: a host that is gone without
-- its connections having ended costs the queue no more than this.
local OFFER = 500

-- A queue that nobody looks at any more goes after a day; whoever waits looks at least once per TTL.
local FORGET_QUEUE = 25 * 60 * 60 * 1000

-- How often to look at a lock that another program holds.
local LOOK_AT_OTHERS = 100

local function text(number)
  return string.format('%.0f', number)
end

local function last_number()
  return tonumber(redis.call('HGET', REGISTER, STRIPE) or '0')
end

-- The hybrid clock: greater than all before, and not behind the wall clock.
local function next_number()
  local number = math.max(last_number() + 1, NOW)
  redis.call('HSET', REGISTER, STRIPE, text(number))
  return number
end

-- In seconds, never more than has passed: the server counts from the whole second in which it started.
local function uptime()
  local told = string.match(redis.call('INFO', 'server'), 'uptime_in_seconds:(%d+)') or '0'
  return math.max(0, told - 1)
end

-- Whether this server may vote: nil, or the answer that says why not. One without a mark has lost its memory, or
-- is new; it may vote once all that it can have forgotten has expired.
local function check_mark(max_ttl)
  if max_ttl == '0' then
    return nil
  end
  local known = redis.call('HMGET', REGISTER, 'mark', 'blank')
  if known[1] == max_ttl then
    return nil
  elseif known[1] then
    return { 'other max_ttl', known[1] }
  end
  local since = tonumber(known[2] or NOW_TEXT)
  if NOW - since >= max_ttl * 1000 then
    redis.call('HSET', REGISTER, 'mark', max_ttl)
    redis.call('HDEL', REGISTER, 'blank')
    return nil
  end
  redis.call('HSETNX', REGISTER, 'blank', NOW_TEXT)
  return { 'blank', text(max_ttl - (NOW - since) / 1000), text(uptime()) }
end

local function holder_note(token, mode, ttl, meta)
  return table.concat({ text(token), NOW_TEXT, text(NOW + ttl * 1000), text(mode), meta }, ':')
end

-- The note of the one holder; none if another program has taken the lock, whose value is then its own.
local function note_of(value)
  local both = redis.call('GET', HOLDERS)
  if both and string.sub(both, 1, #value + 1) == value .. '=' then
    return string.sub(both, #value + 2)
  end
end

-- Whether another program holds the lock.
local function is_foreign()
  local value = redis.call('GET', LOCK)
  return value and value ~= MANY and not note_of(value)
end

local function read_holder(note)
  local token, since, expires, mode, meta = string.match(note, '^(%d+):(%d+):(%d+):(%-?%d+):(.*)$')
  return { token = token, since = since, expires = tonumber(expires), mode = tonumber(mode), meta = meta }
end

local function waiter_note(number, mode, ttl, proposed, channel, meta)
  return table.concat({ number, NOW_TEXT, text(ttl), text(mode), text(proposed), #channel, channel .. meta }, ':')
end

local function read_waiter(claim)
  local note = redis.call('HGET', WAITERS, claim)
  if not note then
    return nil
  end
  local number, since, ttl, mode, proposed, length, rest =
    string.match(note, '^(%d+):(%d+):(%d+):(%-?%d+):(%d+):(%d+):(.*)$')
  return {
    number = number,
    since = since,
    ttl = tonumber(ttl),
    mode = tonumber(mode),
    proposed = tonumber(proposed),
    channel = string.sub(rest, 1, length),
    meta = string.sub(rest, length + 1),
  }
end

local function forget_waiter(claim)
  redis.call('ZREM', QUEUE, claim)
  redis.call('HDEL', WAITERS, claim)
end

-- The modes of those who hold the lock, and its value. Whatever another program has put there is a holder.
local function holders()
  local value = redis.call('GET', LOCK)
  if not value then
    redis.call('DEL', HOLDERS)
    return {}, nil
  end
  if value ~= MANY then
    return { EXCLUSIVE }, value
  end
  local modes = {}
  local all = redis.call('HGETALL', HOLDERS)
  for i = 1, #all, 2 do
    local holder = read_holder(all[i + 1])
    if holder.expires <= NOW then
      redis.call('HDEL', HOLDERS, all[i])
    else
      modes[#modes + 1] = holder.mode
    end
  end
  if #modes == 0 then
    redis.call('DEL', LOCK)
    return {}, nil
  end
  return modes, value
end

-- In milliseconds, until the first of those who hold the lock expires; -1 for never, as another program may have it.
local function time_left()
  if redis.call('GET', LOCK) ~= MANY then
    return redis.call('PTTL', LOCK)
  end
  local first = math.huge
  for _, note in ipairs(redis.call('HVALS', HOLDERS)) do
    first = math.min(first, read_holder(note).expires)
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
  return #modes < mode
end

local function hold(claim, mode, ttl, token, meta)
  local note = holder_note(token, mode, ttl, meta)
  if mode == EXCLUSIVE then
    redis.call('SET', LOCK, claim, 'PX', ttl)
    redis.call('SET', HOLDERS, claim .. '=' .. note, 'PX', ttl)
  else
    local longest = math.max(redis.call('PTTL', LOCK), ttl)
    redis.call('SET', LOCK, MANY, 'PX', longest)
    redis.call('HSET', HOLDERS, claim, note)
    redis.call('PEXPIRE', HOLDERS, longest)
  end
end

-- Grants the whole TTL anew to one who holds the lock; returns its token, or nil if it holds nothing.
local function extend(claim, ttl)
  local value = redis.call('GET', LOCK)
  if value == claim then
    local note = note_of(value)
    redis.call('PEXPIRE', LOCK, ttl)
    redis.call('PEXPIRE', HOLDERS, ttl)
    return note and read_holder(note).token or '0'
  end
  local note = value == MANY and redis.call('HGET', HOLDERS, claim)
  local holder = note and read_holder(note)
  if not holder or holder.expires <= NOW then
    return nil
  end
  local expires = NOW + ttl * 1000
  redis.call('HSET', HOLDERS, claim,
    table.concat({ holder.token, holder.since, text(expires), text(holder.mode), holder.meta }, ':'))
  local longest = math.max(redis.call('PTTL', LOCK), ttl)
  redis.call('PEXPIRE', LOCK, longest)
  redis.call('PEXPIRE', HOLDERS, longest)
  return holder.token
end

-- Takes the lock from a claim, and hands it to nobody. Returns whether the claim held it.
local function drop(claim)
  if redis.call('GET', LOCK) == claim then
    return redis.call('DEL', LOCK, HOLDERS) > 0
  end
  return redis.call('GET', LOCK) == MANY and redis.call('HDEL', HOLDERS, claim) > 0
end

-- Returns how many listen.
local function tell_to_look(waiter, after)
  return redis.call('PUBLISH', waiter.channel, table.concat({ 'look', waiter.number, text(after) }, ':'))
end

-- Whoever is first may now have less to wait for than it thinks.
local function nudge(after)
  local first = redis.call('ZRANGE', QUEUE, 0, 0)[1]
  local waiter = first and read_waiter(first)
  if waiter then
    tell_to_look(waiter, after)
  end
end

-- The token for a waiter whose turn it is: the one it has proposed, or nil if that is behind; else the next one.
local function token_for(waiter)
  if waiter.proposed == 0 then
    return next_number()
  end
  if waiter.proposed > last_number() then
    redis.call('HSET', REGISTER, STRIPE, text(waiter.proposed))
    return waiter.proposed
  end
end

-- Lets in whoever is next while it fits. One that nobody listens for is dead and passed over. The lock is
-- handed over for a moment only, until its holder renews; the one behind it is told when that moment is over.
-- Returns the token of `own`, which needs no message, if its turn has come.
local function admit(own)
  local modes = holders()
  local offered, own_token = false, nil
  while true do
    local claim = redis.call('ZRANGE', QUEUE, 0, 0)[1]
    if not claim then
      break
    end
    local waiter = read_waiter(claim)
    if waiter and not fits(waiter.mode, modes) then
      if offered then
        tell_to_look(waiter, OFFER)
      end
      break
    end
    local token = waiter and token_for(waiter)
    if waiter and not token then
      -- It must propose anew; whoever asks just now learns that from the answer.
      if claim == own or tell_to_look(waiter, 0) > 0 then
        break
      end
      forget_waiter(claim)
    else
      forget_waiter(claim)
      if waiter and claim == own then
        own_token = token
        hold(claim, waiter.mode, waiter.ttl, token, waiter.meta)
        modes[#modes + 1] = waiter.mode
      elseif waiter then
        local offer = math.min(waiter.ttl, OFFER)
        local message = table.concat({ 'granted', waiter.number, text(token), text(offer), NOW_TEXT }, ':')
        if redis.call('PUBLISH', waiter.channel, message) > 0 then
          hold(claim, waiter.mode, offer, token, waiter.meta)
          modes[#modes + 1] = waiter.mode
          offered = true
        end
      end
    end
  end
  return own_token, modes
end
