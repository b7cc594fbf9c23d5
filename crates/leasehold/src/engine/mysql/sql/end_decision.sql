  IF v_last <> v_was THEN
    UPDATE leasehold_tokens SET last = v_last WHERE stripe = v_stripe;
  END IF;
  COMMIT;
  -- Not before the commit: a process that is woken looks at once.
  IF v_wake <> '' THEN
    CALL leasehold_wake(v_wake);
  END IF;
