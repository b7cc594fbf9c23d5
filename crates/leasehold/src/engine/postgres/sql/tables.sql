-- leasehold's tables and functions for PostgreSQL, layout 2. It does no harm to run it again.
--
-- Holders and waiters are rows; neither keeps a connection or a transaction open. All times are the server's.
--
-- Every call that decides who gets a lock first takes the lock's turn, an advisory lock that ends with the call, and so such calls run one after the other.
-- A renewal takes no turn: it changes only rows that have not expired, and a call that removes expired rows waits for the renewal's row locks and then sees
-- the new time.

DO $$
BEGIN
  -- CREATE SCHEMA IF NOT EXISTS needs the right to create schemas even if the schema exists.
  IF pg_catalog.to_regnamespace('leasehold') IS NULL THEN
    CREATE SCHEMA leasehold;
  END IF;
END
$$;

CREATE TABLE IF NOT EXISTS leasehold.layout (
  version integer NOT NULL,
  only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row)
);

-- Refuses tables of a newer version, which may have been created since the client looked. The functions of an older version are removed, since their
-- parameters may differ.
DO $$
DECLARE
  v_found integer;
  v_function text;
BEGIN
  SELECT version INTO v_found FROM leasehold.layout;
  IF v_found > 2 THEN
    RAISE EXCEPTION 'the tables have layout %, and this is layout 2', v_found USING ERRCODE = 'LH002';
  END IF;
  IF v_found < 2 THEN
    FOR v_function IN
      SELECT p.oid::regprocedure FROM pg_catalog.pg_proc p WHERE p.pronamespace = 'leasehold'::regnamespace AND p.proname = ANY (ARRAY[
        'micros', 'refuse_isolation', 'begin_call', 'take_turn', 'try_turn', 'await_checks', 'durably', 'not_durably', 'token_after',
        'fits', 'offer_to', 'put_back', 'expire', 'held', 'heirs', 'enter', 'admit', 'acquire', 'release', 'break_lock', 'renew',
        'beat', 'sweep', 'write_fenced', 'write_if', 'check_lease'])
    LOOP
      EXECUTE 'DROP FUNCTION ' || v_function;
    END LOOP;
    ALTER TABLE leasehold.holders DROP COLUMN IF EXISTS reserved;
    ALTER TABLE leasehold.listeners DROP COLUMN IF EXISTS in_session, ADD COLUMN IF NOT EXISTS session integer;
  END IF;
END
$$;

-- Locks that nobody has used for a while are forgotten: their rows are deleted. This is the greatest token of all of them; a lock without a row starts from
-- there, so that tokens never go back.
CREATE TABLE IF NOT EXISTS leasehold.tokens (
  forgotten bigint NOT NULL,
  only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row)
);
INSERT INTO leasehold.tokens VALUES (0) ON CONFLICT DO NOTHING;

-- Locks and their holders. The row with the empty slot is the lock's own; it exists for as long as the lock is known, held or not. An exclusive holder is
-- written into that row, so that one statement takes a free lock. Shared holders and permits have a row each, whose slot is their claim. A holder's row
-- counts until expires_at; it is emptied or removed by the next call that decides about the lock.
--
-- The only index is the primary key, and no column of the key ever changes, so that an update touches no index.
--
-- backed_until: the commit of an offer need not wait for the disk. After a crash the lock's row may then be an earlier one, and that must exclude everybody else
-- for as long as the waiter relies on the offer. backed_until is the time until which a row on disk does that. An example:
--
--   12:00:00    A renews until 12:00:30. That commit is on disk: the lock is backed until 12:00:30.
--   12:00:10    A releases. B is offered the lock until 12:00:10.5, backed until 12:00:30.
--   12:00:10.1  B releases. C is offered the lock until 12:00:10.6, backed until 12:00:30.
--
-- After a crash the row may be A's, which excludes others until 12:00:30. Or it may be B's offer, which ends before that of C, who may rely on it; so the
-- function `expire` lets an offer from before a crash last until backed_until. The commit of a renewal waits for the disk, so a renewed row backs itself: both
-- times are the same.
CREATE TABLE IF NOT EXISTS leasehold.holders (
  name text COLLATE "C" NOT NULL,
  slot bytea NOT NULL,
  claim bytea,                         -- SHA-256 of the claim id: a reader of the table can neither release nor renew. Null: no holder
  mode integer NOT NULL,               -- 0: exclusive, -1: shared, n: one of n permits
  token bigint NOT NULL,               -- in the lock's own row the greatest that was given for the lock
  since timestamptz NOT NULL,
  expires_at timestamptz NOT NULL,
  backed_until timestamptz NOT NULL,   -- no earlier than expires_at; see above
  offered boolean NOT NULL,            -- an offer that was not renewed yet
  together integer NOT NULL,           -- in the lock's own row: how many other rows, of shared holders or permits, there are
  queued boolean NOT NULL,             -- in the lock's own row: there may be waiters
  ttl bigint,                          -- for an offer: the waiter's TTL in milliseconds,
  listener text,                       -- the listener of its process,
  number bigint,                       -- and its number there
  owner text NOT NULL,
  host text NOT NULL,
  pid bigint NOT NULL,
  reason text,
  PRIMARY KEY (name, slot)
) WITH (fillfactor = 50);

-- The queues of all locks. A waiter leaves its queue when it is offered the lock, gives up, or is found to be dead. The table is unlogged: after a crash it is
-- empty, and the waiters queue again.
CREATE UNLOGGED TABLE IF NOT EXISTS leasehold.waiters (
  name text COLLATE "C" NOT NULL,
  claim bytea NOT NULL,
  position bigint GENERATED ALWAYS AS IDENTITY, -- the order of arrival
  mode integer NOT NULL,
  ttl bigint NOT NULL,                 -- milliseconds
  since timestamptz NOT NULL,
  listener text NOT NULL,              -- of its process, and
  number bigint NOT NULL,              -- its number there: where its notices go
  look_at timestamptz,                 -- a notice: it should make another attempt then
  lapsed boolean NOT NULL DEFAULT false, -- its offer has ended unused: it is not in the queue until it makes another attempt
  owner text NOT NULL,
  host text NOT NULL,
  pid bigint NOT NULL,
  reason text,
  PRIMARY KEY (name, claim)
);

CREATE INDEX IF NOT EXISTS waiters_in_order ON leasehold.waiters (name, position);
CREATE INDEX IF NOT EXISTS waiters_to_look ON leasehold.waiters (listener) WHERE look_at IS NOT NULL;

-- When the last crash was noticed. The table is unlogged, so the row is missing after a crash; the first call of `beat`, `renew`, `sweep` or `release`
-- writes it again. A row of holders that is as old as this time, or older, may be from before a crash.
CREATE UNLOGGED TABLE IF NOT EXISTS leasehold.crashes (
  noticed_at timestamptz NOT NULL,
  only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row)
);
INSERT INTO leasehold.crashes VALUES (clock_timestamp()) ON CONFLICT DO NOTHING;

-- One row for each process that waits. Its waiters count as alive for as long as it does.
CREATE UNLOGGED TABLE IF NOT EXISTS leasehold.listeners (
  id text PRIMARY KEY,
  alive_until timestamptz NOT NULL,
  session integer,                     -- the backend (pid) that has the advisory lock on its id, which ends with the connection. Null: none
  passed_over boolean NOT NULL         -- it counted as dead, and waiters of it may have been removed from their queues
) WITH (fillfactor = 50);

-- Guarded records. They refuse writes with a lower token than the greatest that has written.
CREATE TABLE IF NOT EXISTS leasehold.records (
  key text COLLATE "C" PRIMARY KEY,
  value bytea,                         -- null: the record was deleted, and only the rest is kept
  version bigint NOT NULL,
  token bigint NOT NULL,
  lock text,
  ends_at timestamptz                  -- when its lifetime is over; null: never
);

ALTER TABLE leasehold.records ADD COLUMN IF NOT EXISTS ends_at timestamptz, ALTER COLUMN value DROP NOT NULL;

CREATE INDEX IF NOT EXISTS records_ending ON leasehold.records (ends_at) WHERE ends_at IS NOT NULL;
