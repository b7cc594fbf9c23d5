-- Renews each claim that holds its lock, for its whole TTL. If more time than that is left, it stays as it is, unless the claim is to be shortened; then the first
-- waiter is notified. Returns the place in the batch and the token of each claim that was renewed. The rows are locked in one order, so that two calls cannot wait
-- for each other.
CREATE OR REPLACE FUNCTION leasehold.renew(
  p_names text[], p_claims bytea[], p_ttls bigint[], p_shorten boolean[], p_patience bigint
)
RETURNS TABLE (nth bigint, token bigint)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v_set text := leasehold.begin_call(p_patience);
  v_now timestamptz := clock_timestamp();
  v_renewed record;
BEGIN
  v_set := leasehold.durably();
  PERFORM leasehold.note_crash(v_now);
  FOR v_renewed IN
    WITH asked AS (
      SELECT * FROM unnest(p_names, p_claims, p_ttls, p_shorten) WITH ORDINALITY AS a (name, claim, ttl, shorten, nth)
    ), found AS (
      SELECT h.name, h.slot, a.nth, h.expires_at AS was_until,
        greatest(v_now + a.ttl * interval '1 millisecond', CASE WHEN NOT a.shorten THEN h.expires_at END) AS until
      FROM asked a JOIN leasehold.holders h ON h.name = a.name AND h.slot = ANY (ARRAY['', a.claim]) AND h.claim = a.claim
      WHERE h.expires_at > clock_timestamp()
      ORDER BY h.name, h.slot FOR NO KEY UPDATE OF h
    )
    UPDATE leasehold.holders h
    SET expires_at = f.until, backed_until = f.until, offered = false
    FROM found f WHERE h.name = f.name AND h.slot = f.slot
    RETURNING f.nth, h.token, h.name, f.until, f.was_until > f.until AS cut_short
  LOOP
    IF v_renewed.cut_short THEN
      PERFORM leasehold.notify_first(v_renewed.name, v_renewed.until, v_now);
    END IF;
    nth := v_renewed.nth;
    token := v_renewed.token;
    RETURN NEXT;
  END LOOP;
END
$$;
