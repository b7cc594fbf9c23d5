-- Removes rows that are of no more use: holders, and waiters and notices of listeners, whose time was over ten seconds ago, up to 1,000 of each. The last
-- tokens stay.
--
-- Each statement is a transaction. MariaDB locks rows while it looks at them, so a statement may wait for others; it keeps locks only on rows that it removes.
CREATE PROCEDURE leasehold_sweep()
SQL SECURITY INVOKER
BEGIN
  DECLARE v_before BIGINT DEFAULT {now} - 10000000;
{begin}
  DELETE h FROM (
    SELECT name, claim FROM leasehold_holders WHERE expires_at < v_before ORDER BY name, claim LIMIT 1000
  ) old STRAIGHT_JOIN leasehold_holders h ON h.name = old.name AND h.claim = old.claim
  WHERE h.expires_at < v_before;
  DELETE w FROM (
    SELECT w.name, w.claim FROM leasehold_waiters w LEFT JOIN leasehold_listeners l ON l.id = w.listener
    WHERE w.since < v_before AND (l.id IS NULL OR l.alive_until < v_before) LIMIT 1000
  ) old STRAIGHT_JOIN leasehold_waiters w ON w.name = old.name AND w.claim = old.claim
  -- Checked again, with a lock: the listener may have come back meanwhile. It then finds its waiters either in the queue or gone.
  WHERE NOT EXISTS (SELECT 1 FROM leasehold_listeners l WHERE l.id = w.listener AND l.alive_until >= v_before LOCK IN SHARE MODE);
  DELETE l FROM (SELECT id FROM leasehold_listeners WHERE alive_until < v_before LIMIT 1000) old
  STRAIGHT_JOIN leasehold_listeners l ON l.id = old.id
  WHERE l.alive_until < v_before;
  DELETE n FROM (
    SELECT n.id FROM leasehold_notices n LEFT JOIN leasehold_listeners l ON l.id = n.listener WHERE l.id IS NULL LIMIT 1000
  ) old STRAIGHT_JOIN leasehold_notices n ON n.id = old.id;
END
