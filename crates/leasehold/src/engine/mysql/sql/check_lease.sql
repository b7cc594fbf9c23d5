-- For transactions of the user's own: fails unless this token is that of a live holder of the lock, and lets nobody else in before
-- the transaction has ended, even if the lease runs out meanwhile. To let another in is to delete the holder's row, and with it the entry
-- in an index that is locked here; a renewal does not touch that entry, and does not wait. With the entry the gap before it may be locked,
-- where nothing is ever put: tokens rise.
CREATE PROCEDURE leasehold_check_lease(p_name VARBINARY(255), p_token BIGINT)
SQL SECURITY INVOKER
BEGIN
  DECLARE v_now BIGINT DEFAULT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));
  DECLARE v_token, v_expires_at BIGINT;
  DECLARE CONTINUE HANDLER FOR NOT FOUND BEGIN END;
  -- Without a lock: what is not there would be locked as a gap.
  SELECT expires_at INTO v_expires_at FROM leasehold_holders WHERE token = p_token AND name = p_name;
  IF v_expires_at IS NOT NULL THEN
    -- Nothing but what is in the index, or the row itself would be locked too.
    SELECT token INTO v_token FROM leasehold_holders FORCE INDEX (checks) WHERE token = p_token AND name = p_name LOCK IN SHARE MODE;
  END IF;
  IF v_token IS NOT NULL AND v_expires_at <= v_now THEN
    -- What this transaction sees may be older than the last renewal.
    SELECT expires_at INTO v_expires_at FROM leasehold_holders WHERE token = p_token AND name = p_name LOCK IN SHARE MODE;
  END IF;
  IF v_token IS NULL OR v_expires_at <= v_now THEN
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'stale fencing token: it is not that of a holder of the lock';
  END IF;
END
