-- leasehold's tables and functions for PostgreSQL, layout 1. To run again does no harm.
--
-- A holder or a waiter is a row; nobody keeps a connection or a transaction open. All times are the server's. Every
-- call that decides about a lock first takes the lock's stripe, a number from its name, as an advisory lock that ends with
-- the call. Renewals take no stripe: they touch rows that are there and have not expired, and whoever removes an
-- expired row waits for them and looks again.

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

-- The greatest token given in each stripe: storage does not grow with the number of names.
CREATE TABLE IF NOT EXISTS leasehold.tokens (
  stripe integer PRIMARY KEY,
  last bigint NOT NULL
) WITH (fillfactor = 50);

-- A claim is kept as a hash: who reads the table cannot release or renew.
CREATE TABLE IF NOT EXISTS leasehold.holders (
  name text COLLATE "C" NOT NULL,
  claim bytea NOT NULL,
  mode integer NOT NULL,               -- 0: exclusive, -1: shared, n: a permit of n
  token bigint NOT NULL,
  since timestamptz NOT NULL,
  expires_at timestamptz NOT NULL,
  backed_until timestamptz NOT NULL,   -- until then, a crash that forgets this row brings back one that excludes as much
  offered boolean NOT NULL,            -- handed over, and its holder has not said a word yet
  ttl bigint,                          -- of who was handed the lock, and where to tell it
  listener text,
  number bigint,
  owner text NOT NULL,
  host text NOT NULL,
  pid bigint NOT NULL,
  reason text,
  PRIMARY KEY (name, claim)
) WITH (fillfactor = 50);

CREATE INDEX IF NOT EXISTS holders_offered ON leasehold.holders (listener, expires_at) WHERE offered;

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
