-- Takes the lock from a claim, and offers it to nobody, unless a later attempt than this one, or one of another process, has been answered with
-- the grant, or one in another mode. Returns whether it was taken.
local function take_back(claim, attempt, mode)
  local value = redis.call('GET', LOCK)
  local holder = holder_of(claim, value)
  if not holder or holder.mode ~= mode or holder.attempt > attempt or is_of_another(holder.attempt, attempt) then
    return false
  elseif value == MANY then
    remove_one_of_many(claim)
  else
    redis.call('DEL', LOCK)
  end
  return true
end

-- Too few servers have granted this attempt: what it got here goes to whoever is next, and the claim back to its position in
-- the queue if it waits, or out of the queue if it does not. What a later attempt has been answered with stays. ARGV: as in an attempt.
local own = read_value(ARGV[1])
local mode, queues, number, channel = string.match(ARGV[5], '^(%-?%d+):(%d):%d:(%d+):(.*)$')
local leaves = queues == '0' and redis.call('ZSCORE', QUEUE, CLAIM)
local taken = take_back(CLAIM, own.attempt, tonumber(mode))
if leaves then
  leave_queue(CLAIM)
elseif taken and queues == '1' then
  redis.call('ZADD', QUEUE, own.token, CLAIM)
  write_waiter(own, tonumber(mode), tonumber(own.token), number, channel)
  redis.call('PEXPIRE', QUEUE, FORGET_QUEUE)
  redis.call('PEXPIRE', WAITERS, FORGET_QUEUE)
end
if taken or leaves then
  admit(nil)
end
return 1
