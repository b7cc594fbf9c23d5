-- An operator's forced release: the holders lose the lock, as if they had expired, and it is offered to the next waiters. Returns whether it was held, the
-- server's time, and notices to waiters of the calling process.
CREATE PROCEDURE leasehold_force_release(p_name VARBINARY(255), p_listener {listener_id})
SQL SECURITY INVOKER
BEGIN
  DECLARE v_ends, v_expected BIGINT;
{begin_decision}
  SELECT MAX(expires_at), MAX(GREATEST(expires_at, since + COALESCE(ttl, 0) * 1000)) INTO v_ends, v_expected
  FROM leasehold_holders WHERE name = p_name;
  CALL leasehold_expire(p_name, 9223372036854775807);
  CALL leasehold_admit(p_name, v_now, NULL, p_listener, v_expected, v_last, v_notices, v_wake);
{end_decision}
  SELECT COALESCE(v_ends > v_now, FALSE), v_now, v_notices;
END
