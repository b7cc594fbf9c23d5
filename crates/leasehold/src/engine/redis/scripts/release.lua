if value == MANY then
  local note = redis.call('HGET', HOLDERS, CLAIM)
  held = note and read_holder(note).expires > NOW
  redis.call('HDEL', HOLDERS, CLAIM)
end
if redis.call('EXISTS', QUEUE) == 1 then
  if not held then
    forget_waiter(CLAIM)
  end
  admit(nil)
elseif value == MANY then
  holders()
end
return { held and 'released' or 'not held' }
