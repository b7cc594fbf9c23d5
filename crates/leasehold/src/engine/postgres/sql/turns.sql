-- What all calls have in common. Functions in plain SQL are of one expression each: so they become part of what calls them, which costs
-- nothing, where a call of a function in PL/pgSQL costs more than the rest.

CREATE OR REPLACE FUNCTION leasehold.stripe(p_name text) RETURNS integer
LANGUAGE sql STABLE STRICT AS $$
  SELECT (get_byte(sha256(convert_to(p_name, 'UTF8')), 0) * 4)
       + (get_byte(sha256(convert_to(p_name, 'UTF8')), 1) & 3)
$$;

CREATE OR REPLACE FUNCTION leasehold.micros(p_time timestamptz) RETURNS bigint
LANGUAGE sql STABLE STRICT AS $$
  SELECT (extract(epoch FROM p_time) * 1000000)::bigint
$$;

CREATE OR REPLACE FUNCTION leasehold.refuse_isolation() RETURNS text
LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION 'leasehold needs transactions that are read committed' USING ERRCODE = 'LH001';
END
$$;

-- How every call begins. Each statement needs a view of its own. Rows come and go so fast that to read a whole table is never
-- right, small as it may seem.
CREATE OR REPLACE FUNCTION leasehold.begin_call(p_patience bigint) RETURNS text
LANGUAGE sql AS $$
  SELECT CASE
    WHEN current_setting('transaction_isolation') <> 'read committed' THEN leasehold.refuse_isolation()
    WHEN set_config('lock_timeout', p_patience::text, true) IS NOT NULL THEN set_config('enable_seqscan', 'off', true)
  END
$$;

-- How a call begins that decides about one lock: what follows must see what was decided before it.
CREATE OR REPLACE FUNCTION leasehold.take_turn(p_stripe integer, p_patience bigint) RETURNS text
LANGUAGE sql AS $$
  SELECT CASE WHEN leasehold.begin_call(p_patience) IS NOT NULL THEN pg_advisory_xact_lock(1818583923, p_stripe)::text END
$$;

-- A grant must be on the disk before anyone hears of it.
CREATE OR REPLACE FUNCTION leasehold.durably() RETURNS text
LANGUAGE sql AS $$
  SELECT CASE current_setting('synchronous_commit') WHEN 'off' THEN set_config('synchronous_commit', 'on', true) END
$$;

-- What a crash may forget.
CREATE OR REPLACE FUNCTION leasehold.not_durably() RETURNS text
LANGUAGE sql AS $$
  SELECT set_config('synchronous_commit', 'off', true)
$$;

-- The hybrid clock: greater than all before, and not behind the wall clock.
CREATE OR REPLACE FUNCTION leasehold.next_token(p_stripe integer, p_now timestamptz) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
  v_token bigint;
BEGIN
  INSERT INTO leasehold.tokens AS t (stripe, last) VALUES (p_stripe, leasehold.micros(p_now))
  ON CONFLICT (stripe) DO UPDATE SET last = greatest(t.last + 1, excluded.last)
  RETURNING last INTO v_token;
  RETURN v_token;
END
$$;
