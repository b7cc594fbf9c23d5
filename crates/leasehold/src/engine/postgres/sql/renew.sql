-- Grants each claim its whole TTL anew, if it holds the lock.
CREATE OR REPLACE FUNCTION leasehold.renew(p_names text[], p_claims bytea[], p_ttls bigint[], p_patience bigint)
RETURNS TABLE (nth bigint, token bigint)
LANGUAGE plpgsql AS $$
DECLARE
  v_set text := leasehold.begin_call(p_patience);
  v_now timestamptz := clock_timestamp();
  v_renewed record;
  v_told text;
BEGIN
  v_set := leasehold.durably();
  FOR v_renewed IN
    WITH asked AS (
      SELECT * FROM unnest(p_names, p_claims, p_ttls) WITH ORDINALITY AS a (name, claim, ttl, nth)
    ), found AS (
      SELECT h.name, h.slot, a.ttl, a.nth, h.expires_at AS was_until
      FROM asked a JOIN leasehold.holders h ON h.name = a.name AND h.slot = ANY (ARRAY['', a.claim]) AND h.claim = a.claim
      WHERE h.expires_at > clock_timestamp()
      ORDER BY h.name, h.slot FOR NO KEY UPDATE OF h
    )
    UPDATE leasehold.holders h
    SET expires_at = v_now + f.ttl * interval '1 millisecond',
        backed_until = v_now + f.ttl * interval '1 millisecond',
        offered = false
    FROM found f WHERE h.name = f.name AND h.slot = f.slot
    RETURNING f.nth, h.token, h.name, f.ttl, f.was_until > h.expires_at AS cut_short
  LOOP
    -- Whoever is first may now have less to wait for than it thinks.
    IF v_renewed.cut_short THEN
      UPDATE leasehold.waiters w SET look_at = v_now + v_renewed.ttl * interval '1 millisecond'
      WHERE w.name = v_renewed.name
        AND w.place = (SELECT min(f.place) FROM leasehold.waiters f WHERE f.name = v_renewed.name AND NOT f.lapsed)
      RETURNING pg_notify(w.listener, concat_ws(':', 'look', w.number, v_renewed.ttl))::text INTO v_told;
    END IF;
    nth := v_renewed.nth;
    token := v_renewed.token;
    RETURN NEXT;
  END LOOP;
END
$$;
