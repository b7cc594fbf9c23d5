-- The call of a process that waits, repeated for as long as anyone in it waits. It reports that the process is alive, offers locks whose offers have ended to
-- the next waiters, and returns what is new for waiters of the process: offers and notices. If nothing is, it sleeps first, until leasehold_wake ends its
-- sleep or p_listen milliseconds have passed.
--
-- p_alive        for how many milliseconds the process counts as alive from now on
-- p_known_until  until when it counts as alive so far, as it knows; 0 on a new connection. If that was over, its waiters may have been passed over
-- p_has_life     whether its connection can have the user-level lock that shows that the process is alive
-- p_listen       how long to sleep at most, in milliseconds
-- p_step         how long to sleep at a time, in milliseconds
-- p_wakes        whether leasehold_wake can end the sleep
-- p_delivered    the offers that the process has received, as number-token,...: they are not returned again
-- p_noticed      the ids of the notices that it has received: they are removed
--
-- Returns whether the process counted as alive all the time, the server's time, until when it counts as alive now, and an offer or a notice with its id; one row
-- for each offer and notice, and one without.
--
-- While it sleeps, the connection has the user-level lock 'leasehold:<id>', by which leasehold_wake finds it. The lock is taken before the call looks for
-- offers, so that no wake-up is lost, and released before it answers, so that an answer is seldom cut off.
--
-- Nothing but SELECT reads: MariaDB locks what a subquery within SET or IF reads, and a call that waits for a lock of somebody else reports too late that
-- the process is alive.
CREATE PROCEDURE leasehold_listen(
  p_listener {listener_id}, p_alive BIGINT, p_known_until BIGINT, p_has_life BOOLEAN, p_listen BIGINT,
  p_step BIGINT, p_wakes BOOLEAN, p_delivered MEDIUMTEXT CHARACTER SET ascii, p_noticed MEDIUMTEXT CHARACTER SET ascii
)
SQL SECURITY INVOKER
BEGIN
  DECLARE v_now, v_end, v_alive_until, v_sure_until, v_next_end BIGINT;
  DECLARE v_was_alive, v_has_life, v_is_news BOOLEAN;
  DECLARE v_pause DOUBLE;
  DECLARE v_life VARCHAR(64) CHARACTER SET ascii DEFAULT CONCAT('leasehold-life:', p_listener);
  DECLARE v_name VARBINARY(255);
{begin}
  IF p_noticed <> '' THEN
    DELETE FROM leasehold_notices WHERE listener = p_listener AND FIND_IN_SET(id, p_noticed);
  END IF;
  SET v_now = {now};
  SET v_end = v_now + p_listen * 1000, v_alive_until = p_known_until;
  SET v_was_alive = p_known_until > v_now;
  -- Not with every call, since it is a write: when a tenth of the time has passed, or the server's clock was set back.
  IF NOT v_was_alive OR p_known_until < v_now + p_alive * 900 OR p_known_until > v_now + p_alive * 1000 THEN
    -- An earlier connection of this process may not have ended yet, and still have the lock.
    SET v_has_life = p_has_life AND (IS_USED_LOCK(v_life) <=> CONNECTION_ID() OR COALESCE(GET_LOCK(v_life, 0), 0) = 1);
    SET v_alive_until = v_now + p_alive * 1000, v_sure_until = IF(v_has_life, v_now, v_alive_until);
    INSERT INTO leasehold_listeners (id, alive_until, sure_until) VALUES (p_listener, v_alive_until, v_sure_until)
    ON DUPLICATE KEY UPDATE alive_until = v_alive_until, sure_until = v_sure_until;
    -- The write may have taken a while, and nobody has seen it before its commit.
    SET v_was_alive = p_known_until > {now};
  END IF;
  ended: LOOP
    SELECT MIN(name) INTO v_name FROM leasehold_holders
    WHERE offered_to IS NOT NULL AND expires_at <= v_now AND (v_name IS NULL OR name > v_name);
    IF v_name IS NULL THEN
      LEAVE ended;
    END IF;
    CALL leasehold_offer_next(v_name, p_listener);
  END LOOP;
  -- It sleeps no longer than until the next offer ends, whoever it was made to.
  SELECT MIN(expires_at) INTO v_next_end FROM leasehold_holders WHERE offered_to IS NOT NULL AND expires_at > v_now;
  SET v_end = LEAST(v_end, COALESCE(v_next_end + 1000, v_end));
  IF p_wakes THEN
    DO RELEASE_LOCK(CONCAT('leasehold:', p_listener));
    DO GET_LOCK(CONCAT('leasehold:', p_listener), 0);
  END IF;
  listening: LOOP
    SET v_now = {now};
    SELECT EXISTS (
      SELECT 1 FROM leasehold_holders
      WHERE offered_to = p_listener AND expires_at > v_now AND NOT FIND_IN_SET(CONCAT(number, '-', token), p_delivered)
    ) OR EXISTS (SELECT 1 FROM leasehold_notices WHERE listener = p_listener) INTO v_is_news;
    IF v_now >= v_end OR NOT v_was_alive OR v_is_news THEN
      LEAVE listening;
    END IF;
    -- On MariaDB, a KILL QUERY that meets a SLEEP which is just ending takes two seconds, and no SLEEP on the server ends meanwhile. To wait for a transaction
    -- that never comes is as good.
    SET v_pause = LEAST(p_step, (v_end - v_now) / 1000) / 1000;
    DO /*!100003 IF(TRUE, MASTER_GTID_WAIT('4294967294-1-18446744073709551615', v_pause), */ SLEEP(v_pause) /*!100003 ) */;
  END LOOP;
  IF p_wakes THEN
    DO RELEASE_LOCK(CONCAT('leasehold:', p_listener));
  END IF;
  SELECT v_was_alive, v_now, v_alive_until, NULL, NULL
  UNION ALL
  SELECT v_was_alive, v_now, v_alive_until, CONCAT_WS(':', 'granted', number, token, ROUND((expires_at - since) / 1000), since), NULL
  FROM leasehold_holders
  WHERE offered_to = p_listener AND expires_at > v_now AND NOT FIND_IN_SET(CONCAT(number, '-', token), p_delivered)
  UNION ALL
  SELECT v_was_alive, v_now, v_alive_until, CONCAT_WS(':', 'look', number, GREATEST(0, CEIL((look_at - v_now) / 1000))), id
  FROM leasehold_notices WHERE listener = p_listener;
  -- Without a binary log, InnoDB shows a commit to others before it is on disk. If offers were returned, this write's commit waits until they are on disk as
  -- well; and the client uses the answer only once the call has ended. (An offer that is gone by now is not relied on by anybody.)
  SELECT NOT @@GLOBAL.log_bin AND EXISTS (
    SELECT 1 FROM leasehold_holders
    WHERE offered_to = p_listener AND expires_at > v_now AND NOT FIND_IN_SET(CONCAT(number, '-', token), p_delivered)
  ) INTO v_is_news;
  IF v_is_news THEN
    UPDATE leasehold_listeners SET alive_until = alive_until + 1 WHERE id = p_listener;
  END IF;
END
