-- Removes what nobody will ask for again.
CREATE PROCEDURE leasehold_sweep()
SQL SECURITY INVOKER
BEGIN
  DECLARE v_now BIGINT DEFAULT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));
  DECLARE EXIT HANDLER FOR SQLEXCEPTION
  BEGIN
    ROLLBACK;
    RESIGNAL;
  END;
  ROLLBACK;
  DELETE FROM leasehold_holders WHERE expires_at < v_now - 10000000 LIMIT 10000;
  DELETE FROM leasehold_waiters WHERE since < v_now - 10000000 AND NOT EXISTS (
    SELECT 1 FROM leasehold_listeners l WHERE l.id = listener AND l.alive_until > v_now - 10000000);
  DELETE FROM leasehold_listeners WHERE alive_until < v_now - 60000000;
END
