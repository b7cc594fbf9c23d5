-- For transactions of the user's own: fails unless this token is that of a live holder of the lock, and lets nobody else in before
-- the transaction has ended, even if the lease runs out meanwhile. To let another in is to delete the holder's row, which waits for this
-- lock on it; a renewal changes nothing of its key, and does not wait.
CREATE OR REPLACE FUNCTION leasehold.check_lease(p_name text, p_token bigint) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
  v_expires_at timestamptz;
BEGIN
  SELECT h.expires_at INTO v_expires_at FROM leasehold.holders h WHERE h.name = p_name AND h.token = p_token FOR KEY SHARE;
  IF v_expires_at IS NULL OR v_expires_at <= clock_timestamp() THEN
    RAISE EXCEPTION 'stale fencing token %: it is not that of a holder of the lock %', p_token, p_name
      USING ERRCODE = 'LH409', HINT = 'The lease was lost; give up the work.';
  END IF;
END
$$;
