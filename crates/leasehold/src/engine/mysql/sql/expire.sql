-- Removes holders whose time is over. One that was handed the lock and did not hear of it in time, but is alive, goes to the end of the
-- queue and is told to look.
CREATE PROCEDURE leasehold_expire(p_name VARBINARY(255), p_now BIGINT)
SQL SECURITY INVOKER
BEGIN
  INSERT IGNORE INTO leasehold_waiters (name, claim, mode, ttl, since, listener, number, look_at, owner, host, pid, reason)
  SELECT h.name, h.claim, h.mode, h.ttl, h.since, h.offered_to, h.number, p_now, h.owner, h.host, h.pid, h.reason
  FROM leasehold_holders h JOIN leasehold_listeners l ON l.id = h.offered_to
  WHERE h.name = p_name AND h.expires_at <= p_now AND l.alive_until > p_now
    AND (l.sure_until > p_now OR IS_USED_LOCK(CONCAT('leasehold-life:', l.id)) IS NOT NULL)
  FOR UPDATE;
  DELETE FROM leasehold_holders WHERE name = p_name AND expires_at <= p_now;
END
