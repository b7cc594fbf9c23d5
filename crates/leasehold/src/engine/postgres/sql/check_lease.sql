-- For transactions of the user's own: fails unless this token is that of a live holder of the lock, and lets nobody else in before
-- the transaction has ended, even if the lease runs out meanwhile. Renewals do not wait for it.
CREATE OR REPLACE FUNCTION leasehold.check_lease(p_name text, p_token bigint) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
  v_before bigint;
  v_is_held boolean;
BEGIN
  PERFORM pg_advisory_xact_lock_shared(hashtextextended(p_name, p_token));
  -- What is locked in here is locked no longer than that.
  BEGIN
    -- Whom the lock was passed on to within a process may be here before the release that tells of it, and before those who had the lock
    -- have ended their transactions.
    FOR v_before IN
      SELECT before FROM leasehold.holders h, generate_series(h.token, p_token - 1) before
      WHERE h.name = p_name AND h.slot = '' AND h.claim IS NOT NULL AND p_token > h.token AND p_token <= h.reserved
    LOOP
      PERFORM leasehold.await_checks(p_name, v_before);
    END LOOP;
    SELECT h.expires_at > clock_timestamp() INTO v_is_held FROM leasehold.holders h
    WHERE h.name = p_name AND h.claim IS NOT NULL AND p_token BETWEEN h.token AND greatest(h.token, h.reserved);
    IF v_is_held AND current_setting('transaction_isolation') <> 'read committed' THEN
      -- What it sees may be old. To lock a row that has changed since fails.
      PERFORM FROM leasehold.holders h
      WHERE h.name = p_name AND p_token BETWEEN h.token AND greatest(h.token, h.reserved) FOR SHARE;
    END IF;
    RAISE EXCEPTION 'seen' USING ERRCODE = 'LH000';
  EXCEPTION WHEN SQLSTATE 'LH000' THEN
    NULL;
  END;
  IF v_is_held IS NOT TRUE THEN
    RAISE EXCEPTION 'stale fencing token %: it is not that of a holder of the lock %', p_token, p_name
      USING ERRCODE = 'LH409', HINT = 'The lease was lost; give up the work.';
  END IF;
END
$$;
