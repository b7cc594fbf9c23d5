-- What all calls have in common. Functions in plain SQL are of one expression each: so they become part of what calls them, which costs
-- nothing, where a call of a function in PL/pgSQL costs more than the rest.

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
-- right, small as it may seem. Where no index serves, that costs so much by the server's reckoning that it compiles the statement for a
-- tenth of a second: so each statement must have one.
CREATE OR REPLACE FUNCTION leasehold.begin_call(p_patience bigint) RETURNS text
LANGUAGE sql AS $$
  SELECT CASE
    WHEN current_setting('transaction_isolation') <> 'read committed' THEN leasehold.refuse_isolation()
    WHEN set_config('lock_timeout', p_patience::text, true) IS NOT NULL THEN set_config('enable_seqscan', 'off', true)
  END
$$;

-- How a call begins that decides about one lock: what follows must see what was decided before it.
CREATE OR REPLACE FUNCTION leasehold.take_turn(p_name text, p_patience bigint) RETURNS text
LANGUAGE sql AS $$
  SELECT CASE WHEN leasehold.begin_call(p_patience) IS NOT NULL
    THEN pg_advisory_xact_lock(1818583923, hashtext(p_name))::text END
$$;

-- For those who have others to do: whether it was free.
CREATE OR REPLACE FUNCTION leasehold.try_turn(p_name text) RETURNS boolean
LANGUAGE sql AS $$
  SELECT pg_try_advisory_xact_lock(1818583923, hashtext(p_name))
$$;

-- Transactions of the user's that have checked a lease keep this in common. Whoever lets another in has it alone.
CREATE OR REPLACE FUNCTION leasehold.await_checks(p_name text, p_token bigint) RETURNS text
LANGUAGE sql AS $$
  SELECT pg_advisory_xact_lock(hashtextextended(p_name, p_token))::text
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

-- The hybrid clock: greater than all before, also those that were reserved, and not behind the wall clock.
CREATE OR REPLACE FUNCTION leasehold.token_after(p_last bigint, p_reserved bigint, p_now timestamptz) RETURNS bigint
LANGUAGE sql STABLE AS $$
  SELECT greatest(p_last + 1, p_reserved + 1, leasehold.micros(p_now))
$$;
