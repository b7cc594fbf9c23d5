-- What all calls have in common. The functions here are a single SQL expression each, so that the server inlines them; a call of a PL/pgSQL function would
-- cost more than what it does.
--
-- Every function that clients call sets search_path, which costs a few microseconds, so that nobody who may create functions or operators in another schema
-- can put theirs in the place of the server's. The functions here are called by those, and inherit their search_path. Only micros is called by clients too; it
-- names its operator in full.

CREATE OR REPLACE FUNCTION leasehold.micros(p_time timestamptz) RETURNS bigint
LANGUAGE sql STABLE STRICT AS $$
  SELECT (extract(epoch FROM p_time) OPERATOR(pg_catalog.*) 1000000::numeric)::bigint
$$;

CREATE OR REPLACE FUNCTION leasehold.refuse_isolation() RETURNS text
LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION 'leasehold needs transactions that are read committed' USING ERRCODE = 'LH001';
END
$$;

-- How every call begins. p_patience is for how many milliseconds a statement may wait for a lock.
--
-- Each statement must see what was committed before it, so the isolation level must be read committed.
--
-- Sequential scans are switched off: rows come and go so fast that the planner's statistics are wrong, and a table that seems small may not be. Each statement
-- must therefore be able to use an index. If none fits, the planner's estimate is so high that the server spends a tenth of a second on JIT compilation.
CREATE OR REPLACE FUNCTION leasehold.begin_call(p_patience bigint) RETURNS text
LANGUAGE sql AS $$
  SELECT CASE
    WHEN current_setting('transaction_isolation') <> 'read committed' THEN leasehold.refuse_isolation()
    WHEN set_config('lock_timeout', p_patience::text, true) IS NOT NULL THEN set_config('enable_seqscan', 'off', true)
  END
$$;

-- How a call begins that decides who gets a lock: it waits for its turn. The statements that follow see what was decided before.
CREATE OR REPLACE FUNCTION leasehold.take_turn(p_name text, p_patience bigint) RETURNS text
LANGUAGE sql AS $$
  SELECT CASE WHEN leasehold.begin_call(p_patience) IS NOT NULL
    THEN pg_advisory_xact_lock(1818583923, hashtext(p_name))::text END
$$;

-- Takes the turn if it is free, and does not wait; returns whether it was.
CREATE OR REPLACE FUNCTION leasehold.try_turn(p_name text) RETURNS boolean
LANGUAGE sql AS $$
  SELECT pg_try_advisory_xact_lock(1818583923, hashtext(p_name))
$$;

-- Waits for transactions of the user's own that have checked this lease (check_lease) to end: they share the advisory lock that is taken here exclusively. Before
-- the lock is granted to another claim.
CREATE OR REPLACE FUNCTION leasehold.await_checks(p_name text, p_token bigint) RETURNS text
LANGUAGE sql AS $$
  SELECT pg_advisory_xact_lock(hashtextextended(p_name, p_token))::text
$$;

-- The commit of this call waits until it is on disk, as it must before anyone learns of a grant.
CREATE OR REPLACE FUNCTION leasehold.durably() RETURNS text
LANGUAGE sql AS $$
  SELECT CASE current_setting('synchronous_commit') WHEN 'off' THEN set_config('synchronous_commit', 'on', true) END
$$;

-- The commit of this call does not wait for the disk: a crash may lose it.
CREATE OR REPLACE FUNCTION leasehold.not_durably() RETURNS text
LANGUAGE sql AS $$
  SELECT set_config('synchronous_commit', 'off', true)
$$;

-- The next token: greater than the last one, and not behind the wall clock.
CREATE OR REPLACE FUNCTION leasehold.token_after(p_last bigint, p_now timestamptz) RETURNS bigint
LANGUAGE sql STABLE AS $$
  SELECT greatest(p_last + 1, leasehold.micros(p_now))
$$;
