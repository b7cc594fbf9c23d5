local value = redis.call('GET', LOCK)
if value == MANY then
  local holder = holder_of(CLAIM, value)
  if holder then
    held = holder.expires > NOW
    remove_one_of_many(CLAIM)
  end
end
if offered then
  tell_watchers()
elseif redis.call('EXISTS', QUEUE) == 1 then
  if not held then
    leave_queue(CLAIM)
  end
  admit(nil)
elseif value == MANY then
  holders()
end
return held and 1 or 0
