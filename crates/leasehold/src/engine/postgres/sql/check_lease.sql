-- For transactions of the user's own. Fails unless this token is that of a holder of the lock whose time is not over. Until the transaction ends, the lock is
-- granted to nobody else, even if the lease expires meanwhile (await_checks). Renewals do not wait for it.
CREATE OR REPLACE FUNCTION leasehold.check_lease(p_name text, p_token bigint) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v_is_held boolean;
BEGIN
  PERFORM pg_advisory_xact_lock_shared(hashtextextended(p_name, p_token));
  -- A subtransaction, which is rolled back below so that its row lock does not stay until the user's transaction ends.
  BEGIN
    SELECT h.expires_at > clock_timestamp() INTO v_is_held FROM leasehold.holders h
    WHERE h.name = p_name AND h.claim IS NOT NULL AND h.token = p_token;
    IF v_is_held AND current_setting('transaction_isolation') <> 'read committed' THEN
      -- The transaction may see an old version of the row. Then it is an error to lock it.
      PERFORM FROM leasehold.holders h WHERE h.name = p_name AND h.token = p_token FOR SHARE;
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
