-- A process that waits says so, again and again, and hears what has been handed over to its waiters since. It sleeps in between, in
-- steps of p_step at most, until something happens (then leasehold_wake ends its sleep) or p_hear has passed. p_known are tokens that
-- it has heard of. Whoever listens also passes on what was handed to the dead.
--
-- A lock of the server's own tells which connection sleeps; 0 for p_wakes if there can be none. It is taken before looking, so no wake-up
-- is lost, and given back before answering, so no answer is cut off.
CREATE PROCEDURE leasehold_listen(
  p_listener CHAR(32) CHARACTER SET ascii COLLATE ascii_bin, p_alive BIGINT, p_lives BOOLEAN, p_hear BIGINT,
  p_step BIGINT, p_wakes BOOLEAN, p_known MEDIUMTEXT CHARACTER SET ascii
)
SQL SECURITY INVOKER
BEGIN
  DECLARE v_now, v_end, v_alive_until, v_sure_until, v_lapse BIGINT;
  DECLARE v_was_alive, v_news BOOLEAN;
  DECLARE v_name VARBINARY(255);
  DECLARE CONTINUE HANDLER FOR NOT FOUND BEGIN END;
  DECLARE EXIT HANDLER FOR SQLEXCEPTION
  BEGIN
    ROLLBACK;
    RESIGNAL;
  END;
  ROLLBACK;
  SET v_now = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));
  SET v_end = v_now + p_hear * 1000;
  SELECT alive_until, sure_until INTO v_alive_until, v_sure_until FROM leasehold_listeners WHERE id = p_listener;
  SET v_was_alive = COALESCE(v_alive_until > v_now
    AND (v_sure_until > v_now OR IS_USED_LOCK(CONCAT('leasehold-life:', p_listener)) IS NOT NULL), FALSE);
  IF NOT v_was_alive OR v_alive_until < v_now + p_alive * 900 OR v_alive_until > v_now + p_alive * 1000 THEN
    SET v_alive_until = v_now + p_alive * 1000, v_sure_until = IF(p_lives, v_now, v_alive_until);
    INSERT INTO leasehold_listeners (id, alive_until, sure_until) VALUES (p_listener, v_alive_until, v_sure_until)
    ON DUPLICATE KEY UPDATE alive_until = v_alive_until, sure_until = v_sure_until;
  END IF;
  pass_on: LOOP
    SET v_name = (SELECT MIN(name) FROM leasehold_holders
      WHERE offered_to IS NOT NULL AND expires_at <= v_now AND (v_name IS NULL OR name > v_name));
    IF v_name IS NULL THEN
      LEAVE pass_on;
    END IF;
    CALL leasehold_pass_on(v_name, p_listener);
  END LOOP;
  -- No longer than until the next one may have to be passed on.
  SET v_lapse = (SELECT MIN(expires_at) FROM leasehold_holders WHERE offered_to IS NOT NULL AND expires_at > v_now);
  SET v_end = LEAST(v_end, COALESCE(v_lapse + 1000, v_end));
  IF p_wakes THEN
    DO RELEASE_ALL_LOCKS();
    DO GET_LOCK(CONCAT('leasehold:', p_listener), 0);
  END IF;
  hear: LOOP
    SET v_now = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));
    SET v_news = EXISTS (
      SELECT 1 FROM leasehold_holders WHERE offered_to = p_listener AND expires_at > v_now AND NOT FIND_IN_SET(token, p_known)
    ) OR EXISTS (SELECT 1 FROM leasehold_waiters WHERE listener = p_listener AND look_at IS NOT NULL);
    IF v_news OR v_now >= v_end OR NOT v_was_alive THEN
      LEAVE hear;
    END IF;
    DO SLEEP(LEAST(p_step, (v_end - v_now) / 1000) / 1000);
  END LOOP;
  IF p_wakes THEN
    DO RELEASE_ALL_LOCKS();
  END IF;
  SELECT v_was_alive, v_now, (v_alive_until - v_now) DIV 1000, NULL
  UNION ALL
  SELECT v_was_alive, v_now, 0, CONCAT_WS(':', 'granted', number, token, ROUND((expires_at - since) / 1000), since)
  FROM leasehold_holders WHERE offered_to = p_listener AND expires_at > v_now AND NOT FIND_IN_SET(token, p_known)
  UNION ALL
  SELECT v_was_alive, v_now, 0, CONCAT_WS(':', 'look', number, GREATEST(0, CEIL((look_at - v_now) / 1000)))
  FROM leasehold_waiters WHERE listener = p_listener AND look_at IS NOT NULL;
  IF v_news THEN
    UPDATE leasehold_waiters SET look_at = NULL WHERE listener = p_listener AND look_at IS NOT NULL;
  END IF;
END
