-- For transactions of the user's own. Fails unless this token is that of a holder of the lock whose time is not over. Until the transaction ends, the lock
-- is granted to nobody else, even if the lease expires meanwhile.
--
-- Why: to grant the lock to another claim, the holder's row is deleted, and with it the row's entry in the index `checks`, which is locked here. A
-- renewal does not change that entry, so it does not wait. The gap before the entry may be locked as well, but nothing is ever inserted there, since
-- tokens rise.
CREATE PROCEDURE leasehold_check_lease(p_name VARBINARY(255), p_token BIGINT)
SQL SECURITY INVOKER
BEGIN
  DECLARE v_now BIGINT DEFAULT {now};
  DECLARE v_token, v_expires_at BIGINT;
  DECLARE CONTINUE HANDLER FOR NOT FOUND BEGIN END;
  -- Without locking: if there is no such row, a locking read would lock the gap where the row of another holder may be inserted.
  SELECT expires_at INTO v_expires_at FROM leasehold_holders WHERE token = p_token AND name = p_name;
  IF v_expires_at IS NOT NULL THEN
    -- Only columns of the index are read: otherwise the row itself would be locked, and renewals would wait.
    SELECT token INTO v_token FROM leasehold_holders FORCE INDEX (checks) WHERE token = p_token AND name = p_name LOCK IN SHARE MODE;
  END IF;
  IF v_token IS NOT NULL AND v_expires_at <= v_now THEN
    -- The user's transaction may see the row as it was before the last renewal. A locking read sees it as it is.
    SELECT expires_at INTO v_expires_at FROM leasehold_holders WHERE token = p_token AND name = p_name LOCK IN SHARE MODE;
  END IF;
  IF v_token IS NULL OR v_expires_at <= v_now THEN
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'stale fencing token: it is not that of a holder of the lock';
  END IF;
END
