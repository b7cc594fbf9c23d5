-- Gives up a claim, whether it holds the lock, was offered it, waits for it or is not known, and offers the lock to the next waiters. Returns whether it was
-- held, the server's time, and notices to waiters of the calling process.
CREATE PROCEDURE leasehold_release(p_name VARBINARY(255), p_claim BINARY(32), p_listener {listener_id})
SQL SECURITY INVOKER
BEGIN
  DECLARE v_held, v_has_left BOOLEAN DEFAULT FALSE;
  DECLARE v_ends, v_expected BIGINT;
{begin_decision}
  -- What the waiters expect of an offer is a whole TTL.
  SELECT MAX(expires_at), MAX(GREATEST(expires_at, since + COALESCE(ttl, 0) * 1000)) INTO v_ends, v_expected
  FROM leasehold_holders WHERE name = p_name AND claim = p_claim;
  IF v_ends IS NOT NULL THEN
    DELETE FROM leasehold_holders WHERE name = p_name AND claim = p_claim;
    SET v_held = v_ends > v_now;
  END IF;
  IF NOT v_held THEN
    DELETE FROM leasehold_waiters WHERE name = p_name AND claim = p_claim;
    SET v_has_left = ROW_COUNT() = 1;
  END IF;
  IF EXISTS (SELECT 1 FROM leasehold_waiters WHERE name = p_name) THEN
    CALL leasehold_admit(p_name, v_now, NULL, p_listener, v_expected, v_last, v_notices, v_wake);
    IF v_has_left THEN
      -- It may have been the only one that knew when the lock ends.
      SELECT MIN(expires_at) INTO v_ends FROM leasehold_holders WHERE name = p_name;
      CALL leasehold_tell_first(p_name, COALESCE(v_ends, v_now), v_now, p_listener, v_notices, v_wake);
    END IF;
  END IF;
{end_decision}
  SELECT v_held, v_now, v_notices;
END
