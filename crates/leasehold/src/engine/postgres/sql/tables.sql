-- leasehold's tables and functions for PostgreSQL, layout 1. To run again does no harm.
--
-- A holder or a waiter is a row; nobody keeps a connection or a transaction open. All times are the server's. Every
-- call that decides about a lock first takes its turn, an advisory lock that ends with the call. Renewals take no
-- turn: they touch rows that are there and have not expired, and whoever removes an expired holder waits for them and
-- looks again.

DO $$
BEGIN
  -- IF NOT EXISTS would ask for the right to create one even where it is there.
  IF to_regnamespace('leasehold') IS NULL THEN
    CREATE SCHEMA leasehold;
  END IF;
END
$$;

CREATE TABLE IF NOT EXISTS leasehold.layout (
  version integer NOT NULL,
  only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row)
);

-- A newer version may have been here in the meantime.
DO $$
DECLARE
  v_newer integer;
BEGIN
  SELECT version INTO v_newer FROM leasehold.layout WHERE version > 1;
  IF FOUND THEN
    RAISE EXCEPTION 'the tables have layout %, and this is layout 1', v_newer USING ERRCODE = 'LH002';
  END IF;
END
$$;

-- The greatest token of all locks that were forgotten: what is not known any more goes on from there.
CREATE TABLE IF NOT EXISTS leasehold.tokens (
  forgotten bigint NOT NULL,
  only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row)
);
INSERT INTO leasehold.tokens VALUES (0) ON CONFLICT DO NOTHING;

-- The row with the empty slot is the lock itself, there for as long as the lock is known; whoever holds it alone is written there, so
-- that one statement takes it, and one hands it over. Those who hold it together have a row each, whose slot is their claim.
-- No index but the key, and no column of the key ever changes: so an update touches no index.
CREATE TABLE IF NOT EXISTS leasehold.holders (
  name text COLLATE "C" NOT NULL,
  slot bytea NOT NULL,
  claim bytea,                         -- a hash: who reads the table cannot release or renew. Null: nobody
  mode integer NOT NULL,               -- 0: exclusive, -1: shared, n: a permit of n
  token bigint NOT NULL,               -- in the lock's own row the greatest that was given
  since timestamptz NOT NULL,
  expires_at timestamptz NOT NULL,
  backed_until timestamptz NOT NULL,   -- until then, a crash that forgets this row brings back one that excludes as much
  offered boolean NOT NULL,            -- handed over, and its holder has not said a word yet
  together integer NOT NULL,           -- in the lock's own row: how many others there are, of its mode
  queued boolean NOT NULL,             -- in the lock's own row: someone may wait
  reserved bigint NOT NULL,            -- in the lock's own row: the last token that its holder may pass it on with
  ttl bigint,                          -- of who was handed the lock, and where to tell it
  listener text,
  number bigint,
  owner text NOT NULL,
  host text NOT NULL,
  pid bigint NOT NULL,
  reason text,
  PRIMARY KEY (name, slot)
) WITH (fillfactor = 50);

-- Forgotten in a crash, and then made again by those who wait: so they need no log.
CREATE UNLOGGED TABLE IF NOT EXISTS leasehold.waiters (
  name text COLLATE "C" NOT NULL,
  claim bytea NOT NULL,
  place bigint GENERATED ALWAYS AS IDENTITY,
  mode integer NOT NULL,
  ttl bigint NOT NULL,                 -- milliseconds
  since timestamptz NOT NULL,
  listener text NOT NULL,
  number bigint NOT NULL,
  look_at timestamptz,                 -- it has less to wait for than it thinks
  lapsed boolean NOT NULL DEFAULT false, -- it was handed the lock and said nothing: not in the queue until it asks again
  owner text NOT NULL,
  host text NOT NULL,
  pid bigint NOT NULL,
  reason text,
  PRIMARY KEY (name, claim)
);

CREATE INDEX IF NOT EXISTS waiters_in_order ON leasehold.waiters (name, place);
CREATE INDEX IF NOT EXISTS waiters_to_look ON leasehold.waiters (listener) WHERE look_at IS NOT NULL;

-- One row a process that waits. Its waiters are alive for as long as it is.
CREATE UNLOGGED TABLE IF NOT EXISTS leasehold.listeners (
  id text PRIMARY KEY,
  alive_until timestamptz NOT NULL,
  in_session boolean NOT NULL,         -- it keeps an advisory lock on its id, which ends with its connection
  passed_over boolean NOT NULL         -- it counted as dead, and has waiters that are no longer in a queue
) WITH (fillfactor = 50);

-- Guarded records: they refuse tokens lower than the highest that has written.
CREATE TABLE IF NOT EXISTS leasehold.records (
  key text COLLATE "C" PRIMARY KEY,
  value bytea NOT NULL,
  version bigint NOT NULL,
  token bigint NOT NULL,
  lock text
);
