-- As acquire.quick.lua, for modes in which there is no quick way.
local taken = false

